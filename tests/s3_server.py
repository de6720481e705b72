"""S3 over HTTP for pyarrow's client: moto's in a process of its own, and a folder as a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen

from pyarrow import fs

from pyspark_kafka_rebalance.testing.processes.ports import ReservedPort

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


class FolderAsBucket:
    """The files of a folder as they are now, as objects of the bucket ``checkpoints``, read only.

    For what another process writes there; moto keeps its own objects. Keys are not looked at.
    """

    def __init__(self, folder: Path) -> None:
        class Handler(_BucketHandler):
            root = folder

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> FolderAsBucket:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def uri(self, path: str) -> str:
        """With keys in it, for a client whose environment has none."""
        host, port = self._server.server_address[:2]
        keys = ":".join((KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]))
        where = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        return f"s3a://{keys}@checkpoints/{path}?{where}"


class _BucketHandler(BaseHTTPRequestHandler):
    """HeadObject, GetObject and ListObjectsV2."""

    root: Path
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        key = unquote(url.path).removeprefix("/checkpoints").strip("/")
        if "list-type" in query:
            self._send(200, self._listing(query.get("prefix", "")).encode())
        elif key and (self.root / key).is_file():
            self._send(200, (self.root / key).read_bytes())
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _listing(self, prefix: str) -> str:
        folder = self.root / prefix
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        objects = "".join(
            f"<Contents><Key>{prefix}{entry.name}</Key><Size>{entry.stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for entry in entries
            if entry.is_file()
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{prefix}{entry.name}/</Prefix></CommonPrefixes>"
            for entry in entries
            if entry.is_dir()
        )
        return (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>checkpoints</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>"
            f"{objects}{folders}</ListBucketResult>"
        )

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
