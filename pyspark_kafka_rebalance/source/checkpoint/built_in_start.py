"""Where the first batch of Spark's own Kafka source starts, from the query's checkpoint.

Spark logs only where batches end. Its Kafka source itself keeps where the first batch starts, in
``sources/N/0`` (``KafkaMicroBatchStream.KafkaSourceInitialOffsetWriter``): a zero byte for
Spark 2.1, a version line, and the positions as in the offset log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kafka.structs import TopicPartition

from ...errors import KafkaRebalanceError
from ..offsets.offset_json import parse_built_in
from .checkpoint_files import CheckpointFiles, open_checkpoint, redacted
from .offset_log import parse_offset_log


def start_of_first_batch(
    location: str | None, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Look up where the first batch starts.

    The ends of that batch, exclusive, distinguish the source from others of the query. Partitions
    that the file lacks were added before the batch was planned.

    Raises
    ------
    KafkaRebalanceError
        The checkpoint is unknown (None), or does not say where the batch starts.
    OSError
        The checkpoint cannot be read; pyarrow may raise other errors, too.
    """
    what = "the first batch of this checkpoint was planned by Spark's own source and not completed"
    if location is None:
        raise KafkaRebalanceError(
            f"{what}; only the checkpoint's files say where it starts: set the source's option "
            "checkpointLocation as well"
        )
    files = open_checkpoint(location)
    topics = {p.topic for p in ends}
    found: dict[TopicPartition, int] = {}
    # If two sources end at the same offsets, the lower start covers both.
    for source in _sources_ending(files, ends):
        path = f"sources/{source}/0"
        if files.exists(path):
            for partition, position in _parse(files.read(path)).items():
                if partition.topic in topics:
                    found[partition] = min(position, found.get(partition, position))
    if not found:
        raise KafkaRebalanceError(
            f"{what}, and no file in {redacted(location)} says where it starts"
        )
    return found


def _sources_ending(files: CheckpointFiles, ends: Mapping[TopicPartition, int]) -> list[str]:
    """Return the sources whose first batch ends there, by number; all if the log is silent."""
    numbers = list(files.names("sources"))
    if not files.exists("offsets/0"):
        return numbers
    logged = parse_offset_log(files.read("offsets/0"))  # in the order of their numbers
    ending = [str(n) for n, (_, end) in enumerate(logged) if parse_built_in(end) == dict(ends)]
    return [number for number in numbers if number in ending] or numbers


def _parse(text: str) -> dict[TopicPartition, int]:
    """Return the positions in such a file; none if it is another source's."""
    version, _, positions = text.lstrip("\0").partition("\n")
    if version != "v1":
        return {}
    try:
        return parse_built_in(json.loads(positions)) or {}
    except ValueError:
        return {}
