"""What becomes of a batch. Pure.

Kafka holds the decision: a batch's output and its marker are one transaction. So what was written
is known from the marker.

Invariants:
 1. A batch whose marker is there is not written again.
 2. A batch is written only by the run that the marker names.
 3. What readers may have seen is never written again: a query whose checkpoint is older than its
    marker writes nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...errors import KafkaRebalanceError
from .marker import Marker


class Decision(enum.Enum):
    """What to do with a batch."""

    WRITE = "write"
    SKIP = "skip"  # it is written already


@dataclass(frozen=True, slots=True)
class BatchAtHand:
    """The batch that Spark wants to be committed.

    Attributes
    ----------
    query : str
        For messages.
    batch, digest
        As in `Marker`.
    """

    query: str
    batch: int
    digest: str


def decide(at_hand: BatchAtHand, marker: Marker | None) -> Decision:
    """Return what to do; ``marker`` is the query's last, and names this run.

    Raises
    ------
    KafkaRebalanceError
        The query's checkpoint is older than its output; says what to do.
    """
    if marker is None or marker.batch < at_hand.batch:
        return Decision.WRITE
    if (marker.batch, marker.digest) == (at_hand.batch, at_hand.digest):
        return Decision.SKIP
    if marker.batch == at_hand.batch:
        found = "has written another batch of this number"
    else:
        found = f"has written up to batch {marker.batch}"
    raise KafkaRebalanceError(
        f"batch {at_hand.batch} of query {at_hand.query} is not written: the query {found}, so its "
        "checkpoint is older than its output, and would repeat records that readers have seen. "
        "Continue with the newest checkpoint; or, to write from here on all the same, with a new "
        "one whose sources start where the output ends"
    )


def is_written_already(query: str, batch: int, marker: Marker | None) -> bool:
    """Whether a write of foreachBatch is a repetition, by the number of its batch alone.

    A restart runs at most the last batch again.

    Raises
    ------
    KafkaRebalanceError
        The number is lower than that: the query's checkpoint is older than the output. Its batches
        have other rows than those of these numbers had, so to leave them out would lose rows.
    """
    if marker is None or marker.batch < batch:
        return False
    if marker.batch == batch:
        return True
    raise KafkaRebalanceError(
        f"batchId {batch} of query {query} is not written: the query has written up to batch "
        f"{marker.batch}, so its checkpoint is older than its output. Continue with the newest "
        "checkpoint; or, to write from here on all the same, with a new one whose sources start "
        "where the output ends"
    )


def may_take_over(query: str, run: str, marker: Marker | None, has_owned: bool) -> bool:
    """Whether a run has to take its query over before it writes; False if it has done so.

    Parameters
    ----------
    query, run : str
    marker : Marker, optional
        The query's last.
    has_owned : bool
        Whether this run took over before, as this process or the checkpoint knows.

    Raises
    ------
    KafkaRebalanceError
        Another run has taken over since this one had: a copy of the checkpoint is in use.
    """
    if marker is not None and marker.run == run:
        return False
    if marker is not None and has_owned:
        raise KafkaRebalanceError(
            f"query {query}: its run {marker.run} in process {marker.pid} on {marker.host} has "
            f"taken over since this run, {run}, had. Two drivers use one checkpoint, or a copy of "
            "it; the newer one goes on. To run both, start one of them with a checkpoint of its own"
        )
    return True
