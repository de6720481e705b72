"""Records that no longer exist although they were to be read, and how that is handled. No queries.

``failOnDataLoss`` decides for all of it: an error that names the missing records, or a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap
from ...errors import DataLossError
from .available_now import AvailableNowRun, BeyondEnd

log = logging.getLogger(__name__)

#: How many ranges of offsets an error names for each partition.
_NAMED_AT_MOST = 10


class LostOfGap(NamedTuple):
    """Offsets that were set aside and no longer exist, and where the log starts now."""

    partition: TopicPartition
    gone: Sequence[Gap]
    log_start: int

    def text(self) -> str:
        """Return this as errors name it, without naming each of thousands of gaps."""
        named = [f"{start} to {end - 1}" for start, end in self.gone[:_NAMED_AT_MOST]]
        if (more := len(self.gone) - len(named)) > 0:
            named[-1] += f" and {more} more ranges up to {self.gone[-1].end - 1}"
        name = f"{self.partition.topic}-{self.partition.partition}"
        return f"{name}: offsets {', '.join(named)}, the log begins at {self.log_start}"


def find_beyond_end(
    positions: Mapping[TopicPartition, int], end_offsets: Mapping[TopicPartition, int]
) -> list[BeyondEnd]:
    """Find partitions that end before their position; :func:`find_data_loss` says if that is loss.

    Sorted by topic and partition.
    """
    beyond = [p for p, position in positions.items() if end_offsets.get(p, position) < position]
    return [BeyondEnd(p, positions[p], end_offsets[p]) for p in sorted(beyond)]


def find_data_loss(
    beyond: Sequence[BeyondEnd], high_watermarks: Mapping[TopicPartition, int]
) -> list[BeyondEnd]:
    """Find partitions whose log ends before their position: recreated, or truncated.

    Under read_committed, a partition ends for us at the start of its first open transaction. A
    position after that comes from a member of the group that reads uncommitted records.
    Partitions without a high watermark (where the log ends, exclusive) are left out.
    """
    return [
        one for one in beyond if high_watermarks.get(one.partition, one.position) < one.position
    ]


class DataLoss:
    """Applies ``failOnDataLoss``: if set, a loss raises DataLossError, otherwise it warns."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def position_is_lost(self, lost: Sequence[BeyondEnd]) -> None:
        """Handle positions past the end: a topic was deleted and recreated, or a log truncated."""
        text = ", ".join(
            f"{p.topic}-{p.partition}: position {position}, end offset {end}"
            for p, position, end in lost
        )
        if self._fails:
            raise DataLossError(
                f"records are gone from Kafka ({text}); to go on at the end offsets, set "
                "failOnDataLoss=false"
            )
        log.warning("records are gone from Kafka, going on at the end offsets: %s", text)

    def gap_is_lost(self, lost: Sequence[LostOfGap]) -> None:
        """Handle records that retention has deleted before they were caught up."""
        text = "; ".join(one.text() for one in lost)
        if self._fails:
            raise DataLossError(
                f"records to catch up on are gone from Kafka ({text}); to go on without them, set "
                "failOnDataLoss=false"
            )
        log.warning("records to catch up on are gone from Kafka: %s", text)

    def is_deleted(
        self, deleted: Mapping[TopicPartition, int | None], run: AvailableNowRun | None
    ) -> None:
        """Handle partitions deleted while the query runs; a run does not miss those it finished."""
        missed = {p: at or 0 for p, at in deleted.items()}
        if run is not None:
            missed = {p: missed[p] for p in run.lacks(run.unread(missed))}
            run.forget(deleted)  # a new topic of the name was created since the run started
        if not missed:
            return
        text = ", ".join(
            f"{p.topic}-{p.partition}: {f'read to {at}' if at else 'not read'}, deleted"
            for p, at in sorted(missed.items())
        )
        if run is not None:
            self._lacks(text)
        elif self._fails:
            raise DataLossError(
                f"records may be gone from Kafka ({text}); to go on without these partitions, "
                "set failOnDataLoss=false"
            )
        else:
            log.warning("records may be gone from Kafka, going on without them: %s", text)

    def run_is_shortened(self, run: AvailableNowRun, shortened: Sequence[BeyondEnd]) -> None:
        """Handle records that existed when the run started and no longer do: it ends earlier."""
        self._lacks(
            ", ".join(
                f"{p.topic}-{p.partition}: read to {at}, end offset {end}"
                for p, at, end in shortened
            )
        )
        run.give_up({p: end for p, _, end in shortened})

    def run_does_without(self, run: AvailableNowRun, deleted: Collection[TopicPartition]) -> None:
        """Handle deleted partitions, which the run may not have read to its end."""
        if missed := run.lacks(deleted):
            self._lacks(
                ", ".join(
                    f"{p.topic}-{p.partition}: read to {run.reached(p) or 0}, deleted"
                    for p in missed
                )
            )
        run.forget(deleted)

    def _lacks(self, gone: str) -> None:
        text = f"records that this run had to read are gone from Kafka ({gone})"
        if self._fails:
            raise DataLossError(f"{text}; to go on without them, set failOnDataLoss=false")
        log.warning("%s", text)
