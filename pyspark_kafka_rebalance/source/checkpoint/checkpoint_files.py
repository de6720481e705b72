"""The files of a query's checkpoint and of its sink: on this machine, in an object store, in HDFS.

A checkpoint's location is written as Hadoop writes it, and pyarrow's filesystems read it. They take
their settings from the environment, like any such client (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
GOOGLE_APPLICATION_CREDENTIALS, CLASSPATH of HDFS …), or from the URI's query
(``s3://bucket/path?endpoint_override=host:9000&scheme=http``). Spark's own settings
(``spark.hadoop.fs.s3a.*``) do not reach Python.
"""

from __future__ import annotations

import contextlib
import os.path
import re
import shutil
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from ...errors import OptionError
from ...settings.values import REDACTED

#: Hadoop's schemes, each with that of pyarrow's ``FileSystem.from_uri``.
_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}

_ALLOWED = f"a local path, or file:, {', '.join(f'{scheme}://' for scheme in _STORES)} and a path"


class CheckpointFiles(Protocol):
    """The file operations that a checkpoint takes; paths are relative to it.

    The source only reads. What the sink writes is in a folder of its own.
    """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""

    def read(self, path: str) -> str:
        """Return the text of a file."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading, from its start on."""

    def create(self, path: str) -> IO[bytes]:
        """Create a file, and the folders that it is in, or write it anew."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that it has; nothing if there is none."""


class LocalFiles:
    """A checkpoint on this machine, or mounted on it."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        try:
            return [entry.name for entry in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return (self._root / path).exists()

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return (self._root / path).read_text("utf-8")

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading, from its start on."""
        return (self._root / path).open("rb")

    def create(self, path: str) -> IO[bytes]:
        """Create a file, and the folders that it is in, or write it anew."""
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("wb")

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that it has; nothing if there is none."""
        there = self._root / path
        if there.is_dir():
            shutil.rmtree(there, ignore_errors=True)
        else:
            there.unlink(missing_ok=True)


class StoreFiles:
    """A checkpoint in an object store or in HDFS; connects with the first request.

    Every call may take as long as the store's client keeps trying. The location was parsed.
    """

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        # Parsing is left to pyarrow, but its errors quote the whole URI, keys included.
        try:
            self._filesystem, self._root = fs.FileSystem.from_uri(location)
        except Exception as error:
            text = _without_secrets(str(error), urlsplit(location, allow_fragments=False))
            raise OSError(f"{redacted(location)}: {type(error).__name__}: {text}") from None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return [info.base_name for info in self._filesystem.get_file_info(selector)]

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        from pyarrow import fs

        info = self._filesystem.get_file_info(f"{self._root}/{path}")
        return bool(info.type != fs.FileType.NotFound)

    def read(self, path: str) -> str:
        """Return the text of a file."""
        with self._filesystem.open_input_stream(f"{self._root}/{path}", compression=None) as file:
            return bytes(file.read()).decode("utf-8")

    def open(self, path: str) -> Any:
        """Open a file for reading, from its start on."""
        return self._filesystem.open_input_stream(f"{self._root}/{path}", compression=None)

    def create(self, path: str) -> Any:
        """Create a file, and the folders that it is in, or write it anew."""
        # HDFS makes the folders, and object stores have none.
        return self._filesystem.open_output_stream(f"{self._root}/{path}", compression=None)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that it has; nothing if there is none."""
        from pyarrow import fs

        there = self._filesystem.get_file_info(f"{self._root}/{path}")
        with contextlib.suppress(FileNotFoundError):  # somebody else was faster
            if there.type == fs.FileType.Directory:
                self._filesystem.delete_dir(there.path)
            elif there.type != fs.FileType.NotFound:
                self._filesystem.delete_file(there.path)


def is_local(location: str) -> bool:
    """Whether a parsed location is a path on this machine."""
    return location.startswith("/")


def open_checkpoint(location: str) -> CheckpointFiles:
    """Open a parsed location; for a store, this may use the network.

    Raises OSError if pyarrow has no such filesystem here, or the URI or the environment is wrong.
    """
    return LocalFiles(location) if is_local(location) else StoreFiles(location)


def parse_location(text: str) -> str:
    """Parse the option ``checkpointLocation``: an absolute path, or a URI as pyarrow reads it.

    Raises OptionError if there is no path, or neither Hadoop nor pyarrow has the scheme. The error
    leaves out possible secrets.
    """
    text = text.strip()
    parts = urlsplit(text, allow_fragments=False)
    if parts.scheme in _STORES and re.match(rf"{parts.scheme}://", text, re.IGNORECASE):
        # Hadoop takes a path as it is written; pyarrow decodes %20 and the like.
        path = quote(parts.path, safe="/").rstrip("/")
        if path.strip("/") and (parts.netloc or parts.scheme in ("hdfs", "viewfs")):
            query = f"?{parts.query}" if parts.query else ""
            return f"{_STORES[parts.scheme]}://{parts.netloc}{path}{query}"
    elif parts.scheme == "file" and not parts.netloc:
        path = re.sub("^file:(//)?", "", text, flags=re.IGNORECASE)
        if path.startswith("/"):
            return os.path.abspath(path)
    elif text and not parts.scheme:
        return os.path.abspath(text)
    raise OptionError("checkpointLocation", redacted(text), _ALLOWED)


def redacted(location: str) -> str:
    """Return the location without user, password and query, which may hold keys."""
    if not urlsplit(location).scheme:
        return location
    head, mark, _ = location.partition("?")
    user = re.search("://([^/]*)@", head)
    # Azure's URIs have the container there: container@account.
    if user is not None and (":" in user[1] or not re.match("(abfs|wasb)s?:", head)):
        head = head.replace(f"{user[1]}@", f"{REDACTED}@", 1)
    return f"{head}?{REDACTED}" if mark else head


def _without_secrets(text: str, parts: SplitResult) -> str:
    for secret in (parts.query, parts.netloc.rpartition("@")[0], parts.password):
        if secret:
            text = text.replace(secret, REDACTED)
    return text
