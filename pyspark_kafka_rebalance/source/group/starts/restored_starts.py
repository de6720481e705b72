"""RestoredStarts: sets the group back to a checkpoint that is older than this query's own commits.

``OwnCommits`` tells what is this query's own. The group follows before the partition starts: else
another query could go on behind records that are to be read again.

Runs on the pump's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import islice

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....errors import PartitionsLostError
from ...offsets.query_identity import QueryIdentity
from ..clients.query_member import QueryMember
from ..clients.query_part import QueryCore, QueryPart
from .rival_runs import RivalRuns

log = logging.getLogger(__name__)

#: How many partitions one log line names.
_NAMED = 20


class RestoredStarts(QueryPart):
    """Commits the lower offsets before the partitions start, and logs what comes again."""

    def __init__(self, core: QueryCore, identity: QueryIdentity) -> None:
        super().__init__(core)
        self._identity = identity
        self._rivals = RivalRuns(core)
        # Those whose start depends on whether another run of this query is alive.
        self._waiting: set[TopicPartition] = set()
        self._told_of: set[TopicPartition] = set()

    def without_waiting(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions whose start can be looked up now."""
        if not self._waiting or self._rivals.is_due():
            return partitions
        return [p for p in partitions if p not in self._waiting]

    def set_back(
        self, member: QueryMember, commits: Mapping[TopicPartition, GroupCommit]
    ) -> set[TopicPartition]:
        """Commit where the checkpoint stands, for partitions where this query itself went beyond.

        Returns the partitions whose start is to be looked up again: once the group is where they
        start, or once it is certain whether another run of this query is alive.
        """
        self._waiting.difference_update(commits)
        with self._state as state:
            seen = {p: state.seen(p, commit) for p, commit in commits.items()}
            back = {p: left for p, left in seen.items() if left != commits[p].remaining}
            runs, has_rival = set(state.own_commits.other_runs), state.own_commits.has_rival
        if not back:
            return set()
        are_gone = False if has_rival else self._rivals.are_gone(runs)
        if are_gone is None:
            self._waiting |= back.keys()
            return set(back)
        if not are_gone:
            self._become_another(runs)
            return set()
        self._tell(back, commits)
        with self._state as state:
            for partition, left in back.items():
                state.own_commits.set_back(partition, commits[partition], left.live, left)
        try:
            if self._options.catch_up is None:
                member.commit_processed({p: left.committed() for p, left in back.items()})
            else:
                member.commit_remaining(back)
        except PartitionsLostError as error:
            log.info("not committed: %s", error)  # the next poll_membership reports the loss
        return set(back)

    def _become_another(self, runs: Collection[str]) -> None:
        before = self._identity.id
        with self._state as state:
            now = state.own_commits.become_another()
        log.warning(
            "group %s: query %s also runs elsewhere (%s), so one of the checkpoints is a copy of "
            "the other. This one is query %s from now on; what the other has committed beyond this "
            "checkpoint counts as delivered by another query and is left out",
            *(self._options.group_id, before, ", ".join(sorted(runs)), now),
        )

    def _tell(
        self,
        back: Mapping[TopicPartition, Remaining],
        commits: Mapping[TopicPartition, GroupCommit],
    ) -> None:
        new = sorted(back.keys() - self._told_of)
        self._told_of.update(new)
        if not new:
            return
        own = self._identity.id
        batches = [
            origin.batch
            for p in new
            if (origin := commits[p].origin) is not None and origin.query == own
        ]
        got_to = f"the query had got to batch {max(batches)}" if batches else "the query went on"
        named = [
            f"{p.topic}-{p.partition} from {back[p].committed()} on, "
            f"committed: {commits[p].remaining.live}"
            for p in islice(new, _NAMED)
        ]
        if len(new) > _NAMED:
            named.append(f"and {len(new) - _NAMED} more partitions")
        log.warning(
            "group %s: the checkpoint of query %s ends with batch %d, and %s, so the checkpoint "
            "was restored. What the query itself had committed since is read again, and the "
            "group's offsets are set back (restoredCheckpoint=group leaves it out): %s",
            *(self._options.group_id, own, self._identity.restored, got_to, "; ".join(named)),
        )
