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
 5. What the group was set back over is to be delivered again, by whoever has the partition then:
    it wins over the checkpoint of a query that has not followed that set-back.
 6. A query follows a set-back once: when it starts the partition. Its offsets say so from then on
    (``set_backs.py``), and what it delivers after that counts as everything that it delivers.
 7. Where transactions of its sink decide a query's batches, its output is where the group is: the
    group wins over the checkpoint, in either direction.

Every commit of this query says so in its metadata (``consumer/offsets/origin.py``).

Not thread-safe, a part of :class:`SharedState`; except for :meth:`describe`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....consumer.offsets.offset_set import Gap, less
from ....consumer.offsets.origin import Stretch, origin_text, taken_over
from ....consumer.offsets.set_backs import SetBack, extended, not_followed
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
    set_backs: tuple[SetBack, ...] = ()


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
        # The tokens of the last set-backs that this query has followed, and of those it makes now.
        self._followed: dict[TopicPartition, str] = {}
        self._token = secrets.token_hex(4)
        self._set_back: set[TopicPartition] = set()
        self.other_runs: set[str] = set()  #: of this query, that have committed
        self.has_rival = False  #: whether one has since this run started (invariant 3)
        #: Whether transactions of its sink decide the query's batches (invariant 7).
        self.by_sink = False
        # The partitions that the group knows, by the last commit, as decided so.
        self._told_by_sink: set[TopicPartition] = set()

    @property
    def query(self) -> str:
        """The query's id."""
        return self._identity.id

    # -- batches that the sink decides ------------------------------------------------------------

    def hear(self, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        """Learn from commits whether this query's batches are decided by its sink."""
        for partition, (_, origin) in commits.items():
            if origin is not None and origin.by_sink and origin.query == self._identity.id:
                self.by_sink = True
                self._told_by_sink.add(partition)
            else:
                self._told_by_sink.discard(partition)

    def decided(self, partitions: Iterable[TopicPartition]) -> None:
        """The sink has committed these."""
        self._told_by_sink.update(partitions)

    def not_told_by_sink(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of which the group's commit does not say that the sink decides."""
        return set(partitions) - self._told_by_sink

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
        if origin is None or origin.run == self.run or not self._follows or self.by_sink:
            return left
        if origin.by_sink and origin.query == query:
            return left
        if origin.query == query:
            self.other_runs.add(origin.run)
            if partition in self._started and left.live > (proven or 0):
                self.has_rival = True
        if proven is None and partition in self._started:
            return left  # what this run knew of it is forgotten, because the log is another
        again = self._not_followed(partition, origin.set_backs)
        unproven = Remaining.of([*gaps, *again], proven or 0)
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
        """Whether the group's offset wins over this query's checkpoint (invariants 5 and 6)."""
        if commit is None or commit.origin is None:
            return False
        again = self._not_followed(partition, commit.origin.set_backs)
        return any(commit.remaining.between(*gap) for gap in again)

    def _not_followed(
        self, partition: TopicPartition, set_backs: tuple[SetBack, ...]
    ) -> Iterable[Gap]:
        if not set_backs:
            return ()
        return not_followed(set_backs, self._followed.get(partition), self._identity.id)

    # -- the checkpoint ---------------------------------------------------------------------------

    def restore(self, followed: Mapping[TopicPartition, str]) -> None:
        """Take over which set-backs an offset of this query has followed."""
        self._followed |= {p: token for p, token in followed.items() if p not in self._started}

    def followed(self) -> Mapping[TopicPartition, str]:
        """The tokens of the last set-backs that this query has followed."""
        return self._followed

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
        gaps = () if commit is None else commit.remaining.gaps
        found = taken_over(before, query, since, gaps)
        set_backs = () if origin is None else origin.set_backs
        self._delivered[partition] = _Delivered(found, set_backs)

    def set_back(
        self,
        partition: TopicPartition,
        commit: GroupCommit,
        start: int,
        left: Remaining | None = None,
    ) -> None:
        """The group is set back from this commit to ``start``, where this query delivers again.

        ``left`` is all that the group owes then, if that is not everything from ``start`` on.
        """
        self.begin(partition, commit, start, True)
        begun, before = self._delivered[partition], commit.remaining
        again = less((left or Remaining(start)).between(0, before.live), before.gaps)
        set_backs = begun.set_backs
        if again:
            if partition in self._set_back:
                self._token, self._set_back = secrets.token_hex(4), set()
            self._set_back.add(partition)
            last = SetBack.of(self._identity.id, self._token, again)
            set_backs = extended(set_backs, last)
        self._delivered[partition] = replace(begun, set_backs=set_backs)

    def started(self, partition: TopicPartition) -> None:
        """This run has started to read the partition, and follows what the group was set back."""
        self._started.add(partition)
        delivered = self._delivered.get(partition)
        if delivered is not None and delivered.set_backs:
            self._followed[partition] = delivered.set_backs[-1].token

    def move_back(self, partition: TopicPartition, position: int) -> None:
        """The log became shorter: this query delivers the records from here on, too."""
        delivered = self._delivered.get(partition)
        if delivered is None:
            return
        stretches = delivered.stretches
        if stretches[-1].since > position:
            below = tuple(stretch for stretch in stretches if stretch.since < position)
            stretches = (*below, Stretch(self._identity.id, position))
        self._delivered[partition] = replace(delivered, stretches=stretches)

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
        limit //= 2
        set_backs = own.set_backs
        return origin_text(
            self.run, batch, own.stretches, offset, limit, bound_to, set_backs, self.by_sink
        )


def _joined_to_live(left: Remaining) -> Remaining:
    """The same set; a gap that touches the live position belongs to the live part."""
    if left.gaps and left.gaps[-1].end == left.live:
        return Remaining(left.gaps[-1].start, left.gaps[:-1])
    return left
