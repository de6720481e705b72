"""What becomes of a batch. Pure.

Kafka holds the decision: a batch's output, the offsets of its input and its marker are one
transaction. So what was written is known from the marker, and from the group.

Invariants:
 1. A batch whose marker is there, or whose input the group has by this query's transaction, is not
    written again.
 2. A batch is written only by the run that the marker names, and only while its members own all
    that it reads; the group checks that once more when it accepts the offsets.
 3. What was not written is read again, by whoever owns it then: by this query, if it can drop the
    batch, else by the query's next run. A batch can be dropped if its sources' positions follow the
    group, and no state has seen its rows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import KafkaRebalanceError, names_of
from ...source.door.snapshot import Snapshot
from .marker import Marker


class Decision(enum.Enum):
    """What to do with a batch."""

    WRITE = "write"
    SKIP = "skip"  # it is written already
    DROP = "drop"  # its partitions were lost


@dataclass(frozen=True, slots=True)
class BatchAtHand:
    """The batch that Spark wants to be committed.

    Attributes
    ----------
    query, batch, digest, run
        As in `Marker`; ``query`` is for messages.
    follows_group : bool
        Whether all sources are this package's and have a group: their positions follow it.
    is_stateful : bool
    """

    query: str
    batch: int
    digest: str
    run: str
    follows_group: bool
    is_stateful: bool


def decide(at_hand: BatchAtHand, marker: Marker | None, sources: Sequence[Snapshot]) -> Decision:
    """Return what to do.

    Parameters
    ----------
    at_hand : BatchAtHand
    marker : Marker, optional
        The query's last; that of another run is `may_take_over`'s.
    sources : sequence of Snapshot
        Of each source of this package.

    Raises
    ------
    KafkaRebalanceError
        The batch can be neither written nor left; says why, and what to do.
    """
    if marker is not None and (marker.batch, marker.digest) == (at_hand.batch, at_hand.digest):
        return Decision.SKIP
    # One that has nothing to read holds it, whatever became of the others.
    states = {source.state for source in sources if source.ranges or source.state != "held"}
    if states == {"decided"} and at_hand.follows_group:
        return Decision.SKIP
    if "lost" in states or "decided" in states:
        return _without_what_is_lost(at_hand, sources)
    if marker is not None and marker.batch >= at_hand.batch:
        return _of_older_checkpoint(at_hand, marker)
    return Decision.WRITE


def refuse_another_cluster(query: str, sources: Sequence[Snapshot], cluster_id: str | None) -> None:
    """Raise KafkaRebalanceError for sources of a group on another cluster than the sink's.

    ``cluster_id`` is the sink's; None, as in a Snapshot, if it is not known.
    """
    for source in sources:
        ids = {cluster_id, source.cluster_id} - {None}
        if source.fenced and len(ids) > 1:
            raise KafkaRebalanceError(
                f"query {query}: group {source.group_id!r} is on cluster {source.cluster_id}, and "
                f"the sink writes to cluster {cluster_id}, which a transaction cannot span. Write "
                "to a topic of the sources' cluster, and mirror that; or read with assign, so that "
                "the number of the batch tells what is written; or set delivery=at_least_once"
            )


def _without_what_is_lost(at_hand: BatchAtHand, sources: Sequence[Snapshot]) -> Decision:
    if at_hand.follows_group and not at_hand.is_stateful:
        return Decision.DROP
    lost = names_of(sorted({partition for source in sources for partition in source.lost}))
    why = "its state has seen" if at_hand.is_stateful else "another source of the query has given"
    raise KafkaRebalanceError(
        f"batch {at_hand.batch} of query {at_hand.query} was not written: partitions were lost "
        f"before it was ({lost}), and {why} rows of it. Restart the query: it runs the batch "
        "again, without what others have read by then"
    )


def _of_older_checkpoint(at_hand: BatchAtHand, marker: Marker) -> Decision:
    if at_hand.follows_group and not at_hand.is_stateful:
        return Decision.WRITE  # the group still lacks what the batch reads
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
