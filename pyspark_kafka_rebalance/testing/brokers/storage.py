"""Format a broker's data folder, as ``kafka-storage format`` does.

Kafka's tool takes a second of JVM per broker. It writes only the broker's identity, and a
``bootstrap.checkpoint`` with the feature levels of the release, which is the same for every
cluster. So the tool writes that file once per version of Kafka (and per choice of other levels),
and the file is copied from then on.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import LocalKafkaError
from ..java import find_java

log = logging.getLogger(__name__)

_CHECKPOINT = "bootstrap.checkpoint"


def random_id() -> str:
    """Return a Kafka ``Uuid``, 16 bytes in URL-safe base64, that does not look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def format_storage(
    jars: Path, data: Path, cluster_id: str, node_id: int, features: Mapping[str, int]
) -> None:
    """Make ``data`` the empty data folder of one broker and controller.

    ``features`` has the features with another level than the release's: ``{"group.version": 0}``.
    """
    levels = [f"{name}={level}" for name, level in sorted(features.items())]
    checkpoint = jars / "-".join([*levels, _CHECKPOINT])
    if not checkpoint.exists():
        _write_checkpoint(jars, checkpoint, levels)
    data.mkdir(parents=True)
    shutil.copyfile(checkpoint, data / _CHECKPOINT)
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={random_id()}\n"
    )


def _write_checkpoint(jars: Path, checkpoint: Path, levels: Sequence[str]) -> None:
    log.info("formatting storage for the first time")
    with tempfile.TemporaryDirectory(dir=jars) as folder:
        data = Path(folder, "data")
        properties = Path(folder, "server.properties")
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            "controller.quorum.voters=1@127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\nlog.dirs={data}\n"
        )
        command: list[str | Path] = [
            find_java().executable,
            "-cp",
            f"{jars}/*",
            "kafka.tools.StorageTool",
        ]
        command += ["format", "-t", random_id(), "-c", properties]
        for level in levels:
            command += ["--feature", level]
        tool = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if tool.returncode != 0 or not (data / _CHECKPOINT).exists():
            raise LocalKafkaError(f"Kafka's StorageTool failed:\n{tool.stdout[-2_000:]}")
        # A second process replaces it with the same content.
        os.replace(data / _CHECKPOINT, checkpoint)
