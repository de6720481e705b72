"""S3Server: moto's S3 over HTTP, in a process of its own, for pyarrow's client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from pyarrow import fs

from pyspark_kafka_rebalance.testing.ports import ReservedPort

PATIENCE_S = 60.0

#: What the server lets in; with any others pyarrow would look for keys in the network.
KEYS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "of-no-use",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """An S3 server with one bucket, ``checkpoints``; a context manager.

    Parameters
    ----------
    log : Path
        For what it prints.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self._port.number)],
                stdout=log,
                stderr=log,
                env={**os.environ, **KEYS},
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                urlopen(f"http://{self.host}/moto-api/", timeout=PATIENCE_S).close()
                break
            except URLError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.05)
        filesystem, _ = self.open("")
        filesystem.create_dir("checkpoints")
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._port.release()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._port.number}"

    def uri(self, path: str, scheme: str = "s3a") -> str:
        """What a user writes for a folder of the bucket on a server that is not Amazon's."""
        return (
            f"{scheme}://checkpoints/{path}?endpoint_override={self.host}&scheme=http"
            "&allow_bucket_creation=true"
        )

    def open(self, path: str) -> tuple[fs.FileSystem, str]:
        """For writing; the folder's path in this filesystem."""
        filesystem, root = fs.FileSystem.from_uri(self.uri(path, "s3"))
        return filesystem, root
