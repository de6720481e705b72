"""OwnCommits: what the group's commits are worth to a query that may have gone back. Pure.

A checkpoint can be older than the group: it was restored from a backup, or its newest files were
removed to run a batch again. Then this query itself has committed what lies between the two, and
its sink was set back with the checkpoint. That is no delivery by another query.

Invariants:
 1. What this query has delivered beyond its checkpoint is to be read again: the checkpoint wins.
 2. What another query has delivered is not, and whatever says of no query who committed it is
    another's: the further of checkpoint and group wins.
 3. A query has one run at a time. If another run with this query's id is alive, one of the two
    checkpoints is a copy: this query takes a new id, and what the other run commits is another's.
 4. In doubt records are read again. In order, reading cannot skip: from the first record of this
    query's own on, what others have delivered behind it comes again as well.
 5. While the group is below the offset from which it was set back, it wins over every checkpoint:
    what lies between is to be delivered again, by whoever has the partition then.

Every commit of this query says so in its metadata (``consumer/offsets/origin.py``).

Not thread-safe, a part of :class:`SharedState`; except for :meth:`describe`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....consumer.offsets.offset_set import Gap
from ....consumer.offsets.origin import (
    MOST_STRETCHES,
    MOST_STRETCHES_WITH_GAPS,
    Stretch,
    origin_text,
)
from ...offsets.query_identity import QueryIdentity


def token_of(run: str) -> str:
    """The part of a run's name that tells it from other runs, whatever its client ids begin with.

    A member's client id is the run's name, a dash and a number.
    """
    return run.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class _Delivered:
    """What the commits of one partition say of it."""

    stretches: tuple[Stretch, ...]  #: which query has delivered which offsets; not empty
    again: int = 0  #: where the group was before it was set back; 0 if it was not, or is past that


class OwnCommits:
    """The origins of one query run's commits, and how the query reads those of others.

    Invariant 1 holds with ``follows_checkpoint`` alone (``restoredCheckpoint``); otherwise the
    further position wins. ``in_order`` means without ``parallelRebalance=live``.
    """

    def __init__(
        self,
        identity: QueryIdentity,
        run: str = "run",
        follows_checkpoint: bool = True,
        in_order: bool = True,
    ) -> None:
        self._identity = identity
        self.run = token_of(run)
        self._follows = follows_checkpoint
        self._in_order = in_order
        self._delivered: dict[TopicPartition, _Delivered] = {}  # each replaced, never changed
        self._started: set[TopicPartition] = set()
        self.other_runs: set[str] = set()  #: of this query, that have committed
        self.has_rival = False  #: whether one has since this run started (invariant 3)

    # -- the commits of others, and of earlier runs -----------------------------------------------

    def seen(
        self,
        partition: TopicPartition,
        commit: GroupCommit,
        proven: int | None,
        gaps: Iterable[Gap] = (),
    ) -> Remaining:
        """What is left of a partition for this query, as of a commit.

        ``proven`` is up to where this query has read by its checkpoint, None if that does not know
        the partition; ``gaps`` are what it has unread below that.
        """
        gaps = tuple(gaps)
        left, origin = commit
        query = self._identity.id
        if origin is None or origin.run == self.run or not self._follows:
            return left
        if origin.query == query:
            self.other_runs.add(origin.run)
            if partition in self._started and left.live > (proven or 0):
                self.has_rival = True
        if proven is None and partition in self._started:
            return left  # what this run knew of it is forgotten, because the log is another
        unproven = Remaining.of(gaps, proven or 0)
        own = [
            gap
            for start, end in origin.delivered_by(query, left.live)
            for gap in unproven.between(start, end)
        ]
        if origin.query == query:  # it may have caught up on what the checkpoint has unread
            own.extend(gaps)
        if not own:
            return left
        found = _joined_to_live(Remaining.of([*left.gaps, *own], left.live))
        return Remaining(found.committed()) if self._in_order else found

    def is_set_back(self, partition: TopicPartition, commit: GroupCommit | None) -> bool:
        """Whether the group's offset wins over this query's checkpoint (invariant 5).

        Not if this query committed it: its checkpoint is the one that the group was set back to.
        """
        if commit is None or commit.origin is None or partition in self._started:
            return False
        is_others = commit.origin.query != self._identity.id
        return is_others and commit.origin.again > commit.remaining.committed()

    # -- this run's own ---------------------------------------------------------------------------

    def begin(
        self, partition: TopicPartition, commit: GroupCommit | None, start: int, is_known: bool
    ) -> None:
        """From ``start`` on this query delivers the partition, and commits it.

        If the checkpoint knows the partition, what lies between the group's offset and its position
        is this query's own, whoever has deleted or moved the group's offset.
        """
        since = start
        if commit is not None:
            since = min(start, commit.remaining.live)
        elif is_known:
            since = 0
        query, origin = self._identity.id, None if commit is None else commit.origin
        before = () if origin is None else origin.stretches
        found = _with_stretch(before, query, since)
        kept = MOST_STRETCHES
        if commit is not None and before and (gaps := commit.remaining.gaps):
            # It takes over what the last owner left below.
            for gap in gaps:
                found = _with_stretch(found, query, *gap)
            kept = max(kept, 1 + sum(stretch.since >= gaps[0].start for stretch in found))
            if kept > MOST_STRETCHES_WITH_GAPS:
                # All above the lowest gap counts as this query's. If it counted as the last
                # owner's, that would read the gaps when it is back, as if it were restored.
                lowest = min(since, gaps[0].start)
                found, kept = _with_stretch(before, query, lowest), MOST_STRETCHES
        again = 0 if origin is None else origin.again
        self._delivered[partition] = _Delivered(found[-kept:], again)

    def set_back(self, partition: TopicPartition, commit: GroupCommit, start: int) -> None:
        """The group is set back from this commit to ``start``, where this query delivers again."""
        self.begin(partition, commit, start, True)
        begun = self._delivered[partition]
        again = max(begun.again, commit.remaining.live)
        self._delivered[partition] = replace(begun, again=again)

    def started(self, partition: TopicPartition) -> None:
        """This run has started to read the partition."""
        self._started.add(partition)

    def move_back(self, partition: TopicPartition, position: int) -> None:
        """The log became shorter: this query delivers the records from here on, too."""
        delivered = self._delivered.get(partition)
        if delivered is None:
            return
        stretches = delivered.stretches
        if stretches[-1].since > position:
            below = tuple(stretch for stretch in stretches if stretch.since < position)
            stretches = (*below, Stretch(self._identity.id, position))
        self._delivered[partition] = _Delivered(stretches)

    def become_another(self) -> str:
        """Take a new id, because another run of this query is alive; returns it (invariant 3)."""
        before, now = self._identity.id, self._identity.renew()
        for partition, delivered in self._delivered.items():
            *others, last = delivered.stretches
            if last.query == before:
                renewed = (*others, Stretch(now, last.since))
                self._delivered[partition] = replace(delivered, stretches=renewed)
        self.other_runs, self.has_rival = set(), False
        return now

    # -- any thread -------------------------------------------------------------------------------

    def describe(self, partition: TopicPartition, offset: int, limit: int, bound_to: str) -> str:
        """The origin to commit with this offset, in at most half of the bytes there are.

        Empty if it does not fit, or if the partition was not started.
        """
        own, batch = self._delivered.get(partition), self._identity.batch
        if own is None:
            return ""
        return origin_text(self.run, batch, own.stretches, offset, limit // 2, bound_to, own.again)


def _with_stretch(
    stretches: tuple[Stretch, ...], query: str, start: int, end: int | None = None
) -> tuple[Stretch, ...]:
    """The same, but [start, end) is this query's; without an end, everything from there on."""
    below = [stretch for stretch in stretches if stretch.since < start]
    found = [*below, Stretch(query, start)]
    if end is not None:
        until_end = [stretch for stretch in stretches if stretch.since <= end]
        found += [Stretch(stretch.query, end) for stretch in until_end[-1:]]
        found += [stretch for stretch in stretches if stretch.since > end]
    return tuple(
        stretch
        for at, stretch in enumerate(found)
        if not at or found[at - 1].query != stretch.query
    )


def _joined_to_live(left: Remaining) -> Remaining:
    """The same set; a gap that touches the live position belongs to the live part."""
    if left.gaps and left.gaps[-1].end == left.live:
        return Remaining(left.gaps[-1].start, left.gaps[:-1])
    return left
