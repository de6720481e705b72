"""ProducerMembership: a producer's part in the group, on threads of its own.

    application's thread            pump                      take-overs
      sign_of_life()    ──────►   polls the member   ──────►  restart points
      ownership         ◄──────   what changed       ◄──────  what was found

The threads share ``ownership``. They hold ``changed`` while they use it, and notify it of each
change; it is never held during I/O.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kafka.structs import TopicPartition

from ...consumer.observer import ConsumerObserver
from ...consumer.pump import Pump
from ...errors import MembershipError
from ...produce.producer import GroupMetadata
from ..options import ProducerOptions
from ..restart_points import RestartPoint
from ..restart_topic import ensure_topic
from .member import ProducerMember
from .ownership import SourceOwnership
from .take_overs import TakeOvers

log = logging.getLogger(__name__)

#: Time between two polls of the member; a call of the application can end the wait early.
_TICK_S = 0.02

_CLOSE_S = 3.0


class BeingCalled:
    """A context manager around each call that the application waits for: a sign of life.

    A class, because every record that is sent enters it; a generator would take longer.

    Attributes
    ----------
    under_way : int
        How many calls are under way.
    signs_of_life : int
        How many signs of life the application has given in total; each call that ends is one.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self.signs_of_life = 0

    def __enter__(self) -> None:
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1
        self.signs_of_life += 1


class ProducerMembership:
    """One member of the group; started once, stopped once.

    Parameters
    ----------
    options : ProducerOptions
        The producer's options.
    abort_doomed : callable
        Called on the take-over thread: aborts the open transaction if it is doomed and no call
        uses it.
    ticked : callable
        Called on the pump's thread, about fifty times a second.

    Attributes
    ----------
    being_called : BeingCalled
        The application's calls.
    changed : threading.Condition
        Its lock protects ``ownership``.
    ownership : SourceOwnership
        What is owned.
    record_offsets : dict of int to int
        The offset from which to search for each restart point; written by a take-over, then by
        commits.
    """

    def __init__(
        self,
        options: ProducerOptions,
        abort_doomed: Callable[[], None],
        ticked: Callable[[], None],
    ) -> None:
        self.being_called = BeingCalled()
        self.changed = threading.Condition()
        self.ownership = SourceOwnership(options.source_partition_count)
        self.record_offsets: dict[int, int] = {}
        self._options = options
        self._abort_doomed = abort_doomed
        self._ticked = ticked
        self._member: ProducerMember | None = None
        self._observer: ConsumerObserver | None = None
        self._take_overs: TakeOvers | None = None
        self._identity: GroupMetadata | None = None
        self._signs_seen = 0
        self._unknown_since: float | None = None
        what = f"producer group {options.group_id!r}: the membership"
        self._pump = Pump(
            self._tick,
            name="kafka-producer-group",
            what=what,
            close=self._close_member,
        )
        self._taker = Pump(
            self._take_over,
            name="kafka-producer-take-overs",
            what=what,
            begin=self._begin_taking,
            close=self._close_taker,
        )

    # -- the application --------------------------------------------------------------------------

    def start(self) -> None:
        """Create the topic if there is none, and join; raises as :func:`ensure_topic`."""
        options = self._options
        count = options.source_partition_count
        ensure_topic(options.client, options.group_id, options.topic, count)
        self._member = ProducerMember(options)
        try:
            self._take_overs = TakeOvers(options, self._member, self._waiting, self._found)
        except BaseException:
            self._member.close(timeout_ms=0)
            raise
        # The member is set first. observe() sets the observer first: one of the two sees both.
        if self._observer is not None:
            self._member._observed.by = self._observer
        self._taker.start()
        self._pump.start()

    @property
    def member(self) -> ProducerMember | None:
        """The group's member; None until it is made."""
        return self._member

    def observe(self, observer: ConsumerObserver | None) -> None:
        """Set the member's observer, now or as soon as the member is made."""
        self._observer = observer
        if self._member is not None:
            self._member._observed.by = observer

    def grow(self, source_partition_count: int) -> None:
        """Note how many partitions the source has now; raises as :func:`ensure_topic`."""
        options = self._options
        ensure_topic(options.client, options.group_id, options.topic, source_partition_count)
        with self.changed:
            self.ownership.source_partition_count = source_partition_count
            self._unknown_since = None
            self.changed.notify_all()
        if self._member is not None:
            self._member.request_metadata()

    def sign_of_life(self) -> None:
        """Note a sign of life from the application."""
        self.being_called.signs_of_life += 1

    def raise_failure(self, *, growing: bool = False) -> None:
        """Raise the error that ended the membership.

        Also raises MembershipError if other members have been given a larger source for longer than
        the session timeout, unless this one is ``growing``, which fixes that.
        """
        self._pump.raise_failure()
        self._taker.raise_failure()
        since = None if growing else self._unknown_since
        if since is not None and time.monotonic() - since > self._options.session_timeout_ms / 1000:
            with self.changed:
                unknown, count = (
                    sorted(self.ownership.unknown()),
                    self.ownership.source_partition_count,
                )
            raise MembershipError(
                f"producer group {self._options.group_id!r}: other members say that the source has "
                f"more than source_partition_count={count} partitions, and this member was "
                f"assigned {', '.join(map(str, unknown))}; call grow() with the new number, or "
                "start this member with it"
            )

    def wake(self) -> None:
        """Wake the pump and the take-overs after a change."""
        self._pump.wake()
        self._taker.wake()

    def stop(self, timeout_s: float) -> None:
        """Leave the group, and close the connections."""
        deadline = time.monotonic() + timeout_s
        self._taker.stop(min(timeout_s / 2, 1.0))  # first: it asks through the member
        if not self._pump.stop(max(0.1, deadline - time.monotonic())):
            log.warning(
                "producer group %s: did not leave the group in time", self._options.group_id
            )

    @property
    def member_id(self) -> str:
        """The group's id for this member; empty before it has joined."""
        return "" if self._member is None else self._member.member_id

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return -1 if self._member is None else self._member.generation

    @property
    def has_joined(self) -> bool:
        """Whether an assignment is in force and no join is under way."""
        member = self._member
        return member is not None and member.generation >= 0 and member.is_stable

    def identity(self) -> GroupMetadata | None:
        """``ProducerMember.identity`` as of the last update of ``ownership``; any thread.

        A newer identity might be from an assignment after a loss that ``ownership`` does not know
        of yet.
        """
        return self._identity

    def committer(self) -> GroupMetadata | None:
        """The group metadata to commit the open transaction with; None once part of it is lost.

        After joining again the member would be accepted, even for what another member owns by then.
        """
        with self.changed:
            return self.identity() if self.ownership.may_be_accepted else None

    # -- the pump ---------------------------------------------------------------------------------

    def _tick(self) -> float:
        member = self._member
        assert member is not None
        signs = self.being_called.signs_of_life
        if self.being_called.under_way or signs != self._signs_seen:
            self._signs_seen = signs
            member.alive()
        result = member.poll_membership()
        revoking = _numbers(member.revoking)
        with self.changed:
            ownership = self.ownership
            ownership.lost(
                _numbers(result.lost),
                "this member has lost a source partition that it sent records of",
            )
            self._identity = member.identity()  # None if a loss is not reported yet
            ownership.released(_numbers(result.revoked))
            ownership.assigned(_numbers(result.assigned))
            ownership.asked_back(revoking)
            hold = ownership.hold(revoking)
            waiting = bool(ownership.reading())
            if not ownership.unknown():
                self._unknown_since = None
            elif self._unknown_since is None:
                self._unknown_since = time.monotonic()
            if result.lost or result.revoked or result.assigned or revoking:
                self.changed.notify_all()
            doomed = ownership.doomed is not None
        member.delay_revoke(p for p in result.to_be_revoked if p.partition in hold)
        if waiting or doomed:
            self._taker.wake()
        self._ticked()
        return _TICK_S

    def _close_member(self) -> None:
        if self._member is not None:
            left_s = min(max(self._pump.left_s(), 0.1), _CLOSE_S)
            try:
                self._member.close(timeout_ms=left_s * 1000)
            except Exception:
                log.exception(
                    "producer group %s: did not leave the group cleanly", self._options.group_id
                )
        with self.changed:
            self.changed.notify_all()

    # -- take-overs -------------------------------------------------------------------------------

    def _begin_taking(self) -> None:
        assert self._take_overs is not None
        self._take_overs.connect()

    def _take_over(self) -> float | None:
        assert self._take_overs is not None
        self._abort_doomed()  # a doomed one may hold up this very member's take-over
        try:
            return self._take_overs.tick()
        except Exception:
            if self._taker.is_stopping:  # the connections were closed during the round
                return None
            raise

    def _waiting(self) -> dict[int, int]:
        with self.changed:
            return self.ownership.reading()

    def _found(self, partition: int, number: int, point: RestartPoint | None, after: int) -> None:
        with self.changed:
            value = None if point is None else point.value
            if not self.ownership.read(partition, number, value):
                return
            self.record_offsets[partition] = after
            self.changed.notify_all()
        assert self._member is not None
        self._member.claim({partition: after})

    def _close_taker(self) -> None:
        if self._take_overs is not None:
            self._take_overs.close()
        with self.changed:
            self.changed.notify_all()


def _numbers(partitions: frozenset[TopicPartition]) -> frozenset[int]:
    return frozenset(p.partition for p in partitions)
