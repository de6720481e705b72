"""Transactions: what an application sends, and how its transaction ends.

One thread at a time sends and commits. When none does, the take-over thread aborts a doomed
transaction. All of them hold ``lock``, which is taken before the membership's lock.

If a transaction is aborted against the application's will, every author that sent in it is told
once, by its next call: what it has sent since the last commit is gone, and it must go back to its
restart points. ``aborts.py`` decides who is still to be told.

Longer than other modules: each call looks at the membership, the producer and who is to be told
under one lock, in an order that is easier to check in one place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import (
    KafkaRebalanceError,
    PartitionsLostError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from ..produce.producer import GroupMetadata, Offset
from .aborts import Aborts, Author, Call
from .boundaries import Boundaries
from .membership import ProducerMembership
from .observer import Outcome, ProducerObserver
from .options import ProducerOptions
from .rates import Rates
from .restart_points import check, chosen_points, encoded, key_of
from .writer import Writer, offset_of

log = logging.getLogger(__name__)

_ABORT_S = 10.0

_BY_THE_APPLICATION = "by the application"

#: What ``send_at_once`` returns for a record that it has not sent.
NOT_AT_ONCE = object()

#: What keeps a transaction from beginning, or from going on.
_FAILURES = (kafka_errors.KafkaError, KafkaRebalanceError, OSError)

_IN_DOUBT = (
    "the answer to its commit is missing, so it may have been committed; a poll assigns the owned "
    "source partitions again, with the restart points in the log"
)


class Transactions:
    """The transactions of one member.

    Parameters
    ----------
    options : ProducerOptions
        The member's options.

    Attributes
    ----------
    lock : threading.RLock
        Held while sending, committing or aborting.
    membership : ProducerMembership
        Set after construction, once it exists.
    boundaries : Boundaries
        When a transaction is to be committed automatically.
    rates : Rates
        What was committed.
    aborts : Aborts
        Who is to be told of aborted transactions.
    call : Call
        The call under way. Its author is always the same, unless several share the group.
    observer : ProducerObserver or None
        Called when a transaction ends; any thread may set it.
    """

    membership: ProducerMembership
    observer: ProducerObserver | None = None
    _begun_at: float | None = None
    _commit_s: float | None = None

    def __init__(self, options: ProducerOptions) -> None:
        self.lock = threading.RLock()
        interval_ms = options.commit_interval_ms
        self.boundaries = Boundaries(
            None if interval_ms is None else interval_ms / 1000, options.commit_records
        )
        self.rates = Rates()
        self.aborts = Aborts()
        self.call = Call(Author(hears_at_once=True))
        self._options = options
        self._writer = Writer(options.producer, self._committer)
        #: The number of records in the open transaction, for each source partition that it touches.
        self._counts: dict[int, int] = {}

    def start(self) -> None:
        """Connect, and end what a predecessor with the same transactional id left open."""
        self._writer.connect()

    # -- the application --------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._counts)

    def send(
        self,
        source_partition: int | None,
        restart_point: str | None,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        future: bool = False,
    ) -> Any:
        """Send a record of a source partition, or of all owned ones; return its future, if asked.

        Written for a source partition that the transaction has already: each call or loop saved is
        a percent of a record's cost.

        Raises
        ------
        TransactionAbortedError
            The transaction was aborted since the last call, or by this one.
        PartitionsLostError
            The source partition is not owned; the transaction goes on.
        """
        if restart_point is not None:
            check(restart_point)
        with self.lock:
            call = self.call
            if self.membership.ownership.doomed is not None or not self.aborts.passes(call):
                self.raise_aborted()
            sources: Collection[int] | None = None
            if source_partition not in self._counts:
                sources = self._opened_for(source_partition)
            transaction = self._writer.transaction
            assert transaction is not None
            try:
                delivery = transaction.send(
                    topic, value, key, headers, partition, timestamp_ms, future=future
                )
            except Exception as error:
                self._refuse(error)
                raise
            if sources is None:
                assert source_partition is not None
                self._counts[source_partition] += 1
                self.boundaries.sent_again(source_partition, restart_point)
                self.aborts.sent(call.author, (source_partition,))
            else:
                for p in sources:
                    self._counts[p] += 1
                self.aborts.sent(call.author, sources)
                self.boundaries.sent(sources, restart_point, time.monotonic)
            return delivery

    def send_at_once(
        self,
        call: Call,
        source_partition: int | None,
        restart_point: str | None,
        topic: str,
        *arguments: Any,
        future: bool = False,
    ) -> Any:
        """Send a record as ``send`` does, or return NOT_AT_ONCE if that needs a broker, or to wait.

        A transaction that is doomed from now on still takes the record; the next call reports it.
        """
        if restart_point is not None:
            check(restart_point)
        if not self.lock.acquire(blocking=False):
            return NOT_AT_ONCE
        try:
            transaction, ownership = self._writer.transaction, self.membership.ownership
            if (
                source_partition is None
                or source_partition not in self._counts
                or not (self.aborts.passes(call) or not self.aborts.refuses(call))
                or ownership.doomed is not None
                or transaction is None
                or self._writer.waits_for(topic)
                or self.boundaries.due_with_next(time.monotonic)
                or (self.boundaries.automatic and ownership.asked_back_now)
            ):
                return NOT_AT_ONCE
            try:
                delivery = transaction.send(topic, *arguments, future=future)
            except TransactionAbortedError:
                return NOT_AT_ONCE  # aborting needs a broker
            self._counts[source_partition] += 1
            self.boundaries.sent_again(source_partition, restart_point)
            self.aborts.sent(call.author, (source_partition,))
            return delivery
        finally:
            self.lock.release()

    def commit(self, points: str | Mapping[int, str] | None) -> None:
        """Commit the records and these restart points; None: those given with the records.

        Does nothing if nothing was sent and no restart point is to be moved.

        Raises
        ------
        TransactionAbortedError
            The transaction is not committed, or it is not known whether it is.
        OptionError, PartitionsLostError
            A restart point is missing, not allowed, or for a source partition that is not owned;
            the transaction stays open.
        """
        with self.lock:
            self.raise_aborted()
            membership = self.membership
            with membership.changed:
                owned = membership.ownership.restart_points
            if points is None:
                chosen = self.boundaries.points()
            else:
                sent = frozenset(p for p, count in self._counts.items() if count)
                chosen = chosen_points(points, sent, owned)
            values = {p: encoded(point) for p, point in chosen.items()}
            if not values:
                return
            if self.aborts.any_to_refuse:
                self._refuse_to_pass_by({p for p in chosen if chosen[p] != owned.get(p)})
            for p in values:
                if p not in self._counts:
                    self._opened_for(p)
            options, transaction = self._options, self._writer.transaction
            assert transaction is not None
            try:
                written = {
                    p: transaction.send(
                        options.topic, value, key_of(options.group_id, p), None, p, future=True
                    )
                    for p, value in values.items()
                }
            except _FAILURES as error:
                raise self._give_up(_says(error)) from error
            with membership.changed:
                doomed = None
                if not membership.ownership.begin_commit():
                    doomed = membership.ownership.doomed
            if doomed is not None:
                raise self._give_up(doomed)
            try:
                self._commit_by(values)
            except TransactionAbortedError as error:
                raise self._give_up(error.reason) from error
            except TransactionInDoubtError as error:
                raise self._resolve() from error
            self._committed(chosen, written)

    def abort(self) -> None:
        """Abort the transaction, if any; the caller is then not told of an earlier abort either."""
        with self.lock:
            self.aborts.aborted_by(self.call.author, _BY_THE_APPLICATION)
            if self._is_begun():
                self._abort(_BY_THE_APPLICATION)

    def abort_doomed(self) -> None:
        """Abort the open transaction if it is doomed and nobody is using it; for take-overs."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            with self.membership.changed:
                doomed = self.membership.ownership.doomed
            if doomed is not None:
                self._abort(doomed)
        finally:
            self.lock.release()

    def raise_aborted(self) -> None:
        """Raise TransactionAbortedError if the caller is still to be told of an abort.

        Aborts a doomed transaction first.
        """
        if self.membership.ownership.doomed is None and self.aborts.passes(self.call):
            return
        with self.lock:
            doomed = self.membership.ownership.doomed
            if doomed is not None:
                self._abort(doomed)
            reason = self.aborts.refusal(self.call)
            if reason is not None:
                if self.aborts.has_sent(self.call.author):
                    self._abort(reason)
                    self.aborts.owe(self.call, reason)
                raise self._error(reason)

    def may_commit_by_itself(self) -> bool:
        """Whether a commit now skips no aborted records whose author is still to be told."""
        aborts = self.aborts
        return not aborts.any_to_refuse or not aborts.holds(self.call, self._counts)

    def end_by(self, when: float) -> None:
        """As ``Writer.end_by``; any thread."""
        self._writer.end_by(when)

    def close(self, timeout_s: float) -> None:
        """Commit the open transaction if that is automatic, else abort it; then disconnect."""
        deadline = time.monotonic() + timeout_s
        self.end_by(deadline)
        # Another thread may hold the lock while it waits for a broker.
        locked = self.lock.acquire(timeout=timeout_s)
        try:
            if locked:
                self._end()
            self._writer.close(deadline)
        finally:
            if locked:
                self.lock.release()

    def _committer(self) -> GroupMetadata | None:
        return self.membership.committer()

    # -- with the lock held -----------------------------------------------------------------------

    def _end(self) -> None:
        boundaries = self.boundaries
        goes_by_itself = boundaries.automatic and boundaries.is_boundary()
        try:
            if self.is_open and goes_by_itself and self.may_commit_by_itself():
                self.commit(None)
        except (TransactionAbortedError, kafka_errors.KafkaError) as error:
            log.info("producer group %s: %s", self._options.group_id, error)
        if self._is_begun():
            self._writer.abort("the producer group is closed", _ABORT_S)
            with self.membership.changed:
                self.membership.ownership.aborted()
            self._tell(Outcome.ABORTED)

    def _is_begun(self) -> bool:
        with self.membership.changed:
            return self.membership.ownership.touched is not None

    def _opened_for(self, source_partition: int | None) -> Collection[int]:
        """Begin the transaction if there is none, and add these source partitions to it."""
        membership = self.membership
        with membership.changed:
            owned = membership.ownership.restart_points
            begun = membership.ownership.touched is not None
        if source_partition is None:
            sources: Collection[int] = owned.keys()
            if not owned:
                raise PartitionsLostError(
                    "this member owns no source partition; call poll() until it assigns one"
                )
        elif source_partition in owned:
            sources = (source_partition,)
        else:
            raise PartitionsLostError(
                f"source partition {source_partition} is not owned by this member, which owns "
                f"{sorted(owned)}; poll() returns what is assigned, revoked and lost"
            )
        new = [p for p in sources if p not in self._counts]
        if not new and begun:
            return sources
        options = self._options
        try:
            if not begun:
                self._writer.begin()
            # From this a take-over finds out that the transaction touches them.
            self._writer.announce(options.topic, new, options.group_id)
        except _FAILURES as error:
            raise self._give_up(_says(error)) from error
        with membership.changed:
            gone = [p for p in new if not membership.ownership.owns(p)]
            membership.ownership.touch([p for p in new if p not in gone])
            if gone:
                membership.ownership.doom(
                    "this member has lost a source partition that it was about to send records of"
                )
        self._counts |= dict.fromkeys(new, 0)
        if not begun:
            self._begun_at = time.monotonic()
        self.boundaries.begin(time.monotonic)
        return sources

    def _refuse(self, error: Exception) -> None:
        """Raise TransactionAbortedError if not only this record failed."""
        if isinstance(error, TransactionAbortedError) or self._writer.is_over:
            raise self._give_up(_says(error)) from error
        if not any(self._counts.values()):
            self._abort("its first record was refused")  # or a revoke would wait for it

    def _commit_by(self, partitions: Collection[int]) -> None:
        begun_at = time.monotonic()
        try:
            self._writer.commit(self._group_offsets(partitions))
        finally:
            self._commit_s = time.monotonic() - begun_at

    def _group_offsets(self, partitions: Collection[int]) -> dict[TopicPartition, Offset]:
        """Return the offsets that tie the transaction to the group, and locate restart points."""
        metadata = self._options.transactional_id
        known = self.membership.record_offsets
        return {
            TopicPartition(self._options.topic, p): Offset(known[p], metadata) for p in partitions
        }

    def _committed(self, chosen: Mapping[int, str], written: Mapping[int, Any]) -> None:
        membership = self.membership
        with membership.changed:
            membership.ownership.committed(chosen)
            for p, record in written.items():
                if (offset := offset_of(record)) is not None:
                    membership.record_offsets[p] = offset
            membership.changed.notify_all()
        self.aborts.committed()
        self.rates.committed({p: self._counts.get(p, 0) for p in chosen}, time.monotonic())
        self._forget(Outcome.COMMITTED)

    def _refuse_to_pass_by(self, moved: Collection[int]) -> None:
        """Abort the transaction if it would move restart points beyond missing records."""
        held = self.aborts.holds(self.call, moved)
        if not held:
            return
        reason = (
            "records of source partitions "
            f"{', '.join(map(str, sorted(held)))} were aborted before, and not every sender has "
            "been notified; the restart points would move beyond them"
        )
        if self._is_begun():
            self._abort(reason)
        self.aborts.owe(self.call, reason, held)
        raise self._error(reason)

    def _give_up(self, reason: str) -> TransactionAbortedError:
        """Abort the transaction; return the error to raise."""
        self._abort(reason)
        self.aborts.owe(self.call, reason)
        return self._error(reason)

    def _error(self, reason: str) -> TransactionAbortedError:
        if self.call.author.hears_at_once:
            self.aborts.told(self.call)
        with self.membership.changed:
            return TransactionAbortedError(reason, self.membership.ownership.restart_points)

    def _abort(self, reason: str) -> None:
        log.info("producer group %s: transaction aborted: %s", self._options.group_id, reason)
        self.aborts.aborted(reason)  # first: a look without the lock finds it doomed or aborted
        self._writer.abort(reason, _ABORT_S)
        with self.membership.changed:
            self.membership.ownership.aborted()
            self.membership.changed.notify_all()
        self._forget(Outcome.ABORTED)

    def _resolve(self) -> TransactionAbortedError:
        """Let the restart points show whether the transaction was committed.

        What is owned is lost now. It is assigned again, with the restart points that are read once
        the broker has decided, at the latest when the transaction times out.
        """
        log.warning("producer group %s: %s", self._options.group_id, _IN_DOUBT)
        self.aborts.aborted(_IN_DOUBT)
        self._writer.abort(_IN_DOUBT, 0)  # unless its commit is on its way
        with self.membership.changed:
            self.membership.ownership.in_doubt()
        self.membership.wake()
        self._forget(Outcome.IN_DOUBT)
        self.aborts.owe(self.call, _IN_DOUBT)
        return self._error(_IN_DOUBT)

    def _tell(self, outcome: Outcome) -> None:
        begun_at, commit_s = self._begun_at, self._commit_s
        self._begun_at = self._commit_s = None
        if self.observer is not None and begun_at is not None:
            took_s = time.monotonic() - begun_at
            self.observer.transaction_ended(outcome, self.boundaries.records, took_s, commit_s)

    def _forget(self, outcome: Outcome) -> None:
        self._tell(outcome)
        self._counts.clear()
        self.boundaries.end()


def _says(error: BaseException) -> str:
    """The reason that an error gives for an abort."""
    if isinstance(error, TransactionAbortedError):
        return error.reason
    return f"{type(error).__name__}: {error}"
