"""One file of a task's record batches, beside the checkpoint.

It is at ``kafka_deferred_sink/spill/<query>/<batch>/<task attempt>`` below a folder: the
checkpoint, the one of all checkpoints that the session names, or one for temporary files where
executors and driver are on one machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from ...errors import KafkaRebalanceError
from ...source.checkpoint.checkpoint_files import open_checkpoint, redacted
from .spill_format import SpillFormatError, end_frame, frame_of, read_frames

if TYPE_CHECKING:
    from ...produce.encoder.encoded_batch import EncodedBatch

#: Below it is what the sink keeps with a checkpoint.
SINK_FOLDER = "kafka_deferred_sink"


@dataclass(frozen=True, slots=True)
class SpillFile:
    """Where a file is.

    Attributes
    ----------
    root : str
        A parsed location: an absolute path, or a URI that may contain keys.
    path : str
        Below it.
    host : str
        The machine that has written it.
    """

    root: str = field(repr=False)
    path: str
    host: str

    def read(self) -> Iterator[tuple[str, EncodedBatch]]:
        """Yield topic and batch, one at a time; KafkaRebalanceError if it is not whole."""
        try:
            with open_checkpoint(self.root).open(self.path) as file:
                yield from read_frames(file.read)
        except (OSError, SpillFormatError) as error:
            raise KafkaRebalanceError(
                f"the output of a task on {self.host}, {redacted(self.root)}/{self.path}, cannot "
                f"be read: {error}; executors and driver must share the checkpoint's folder"
            ) from error

    def remove(self) -> None:
        """Remove it, if it is there."""
        open_checkpoint(self.root).remove(self.path)

    def writer(self) -> SpillWriter:
        """Open it for writing."""
        return SpillWriter(self)


class SpillWriter:
    """Writes the batches of one task attempt. Not thread-safe."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file
        self._stream: IO[bytes] | Any = open_checkpoint(file.root).create(file.path)
        self._batches = 0

    def write(self, topic: str, batch: EncodedBatch) -> None:
        """Append a batch."""
        self._stream.write(frame_of(topic, batch))
        self._stream.write(batch.data)
        self._batches += 1

    def close(self) -> None:
        """End the file; it is readable from now on."""
        self._stream.write(end_frame(self._batches))
        self._stream.close()

    def drop(self) -> None:
        """Remove the file: the attempt has failed."""
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._file.remove()
