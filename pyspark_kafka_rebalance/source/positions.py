"""Print the positions of some checkpoints' queries, as ``startingOffsets`` of Spark's own source.

    python -m pyspark_kafka_rebalance.source.positions [--source N | --one-group] CHECKPOINT ...

The way back to ``format("kafka")``: start a new checkpoint from these offsets. A checkpoint is a
path or a URI, as in the option ``checkpointLocation``. With several checkpoints, of all the queries
of a group, this prints each partition's furthest position. With ``--one-group`` it does the same
for two sources of one query that share a group. If its sources have groups of their own and differ,
``--source`` selects one, by its number in the plan or its name. Stop the queries first, preferably
with ``stop_gracefully``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from kafka.structs import TopicPartition

from ..errors import KafkaRebalanceError
from .checkpoint.checkpoint_files import CheckpointFiles, open_checkpoint, parse_location, redacted
from .checkpoint.offset_log import parse_offset_log
from .offsets.offset_json import by_topic, is_own, parse_offset


def positions_in(
    files: CheckpointFiles, source: str | None = None, one_group: bool = False
) -> tuple[dict[TopicPartition, int], list[int]]:
    """Find a query's position: the end of the last batch that it has committed.

    ``source`` is its number in the plan or its name; by default all are used. ``one_group``: the
    sources share a group, so each partition's furthest position counts.

    Returns
    -------
    tuple
        The next offset of each partition that its ``kafka_deferred`` sources have read or owned,
        and the batches that are planned and not committed, whose records will be read again.

    Raises
    ------
    KafkaRebalanceError
        No batch of such a source is committed, or its sources are at different positions.
    OSError, ValueError
        The checkpoint, or its offset log, cannot be read; pyarrow may raise other errors, too.
    """
    planned, committed = (
        {int(name) for name in files.names(folder) if name.isdigit()}
        for folder in ("offsets", "commits")
    )
    newest = max(planned & committed, default=None)
    logged = [] if newest is None else parse_offset_log(files.read(f"offsets/{newest}"))
    own = {
        name: parse_offset(offset).lowest_positions()
        for name, offset in logged
        if is_own(offset) and source in (None, name)
    }
    if newest is None or not own:
        which = "a source" if source is None else f"source {source}"
        raise KafkaRebalanceError(f"no batch of {which} kafka_deferred is committed there")
    furthest = _furthest(list(own.values()))
    for partition in sorted(furthest):
        at = {name: found[partition] for name, found in own.items() if partition in found}
        if len(set(at.values())) > 1 and not one_group:
            raise KafkaRebalanceError(
                f"the query's sources are at different positions of {partition.topic}-"
                f"{partition.partition} ({', '.join(f'{n}: {o}' for n, o in at.items())}): choose "
                "one with --source, or pass --one-group if they share a group"
            )
    return furthest, sorted(number for number in planned if number > newest)


def _furthest(found: Sequence[dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
    furthest: dict[TopicPartition, int] = {}
    for positions in found:
        for partition, position in positions.items():
            furthest[partition] = max(position, furthest.get(partition, position))
    return furthest


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the JSON, and caveats on stderr; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.source.positions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", nargs="+")
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--source", help="which source of a query with several: its number in the plan, or its name"
    )
    several.add_argument(
        "--one-group", action="store_true", help="the sources of a query share a group"
    )
    given = parser.parse_args(arguments)
    found = []
    for text in given.checkpoint:
        try:
            location = parse_location(text)
            files = open_checkpoint(location)
            positions, open_batches = positions_in(files, given.source, given.one_group)
        except (KafkaRebalanceError, OSError, ValueError) as error:
            print(f"{redacted(text)}: {error}", file=sys.stderr)
            return 1
        found.append(positions)
        for batch in open_batches:
            print(
                f"{redacted(text)}: batch {batch} was planned and is not committed; records of it "
                "that the sink already has will come again",
                file=sys.stderr,
            )
    print(json.dumps(by_topic(_furthest(found)), separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
