"""Transactions: what an application sends, and how its transaction ends.

One thread at a time sends and commits. When none does, the take-over thread aborts a doomed
transaction. All of them hold ``lock``, which is taken before the membership's lock.

Who means which transaction:

1. A call on a handle means the handle's. Once that has ended, each such call raises
   TransactionAbortedError.
2. A call without a handle means the transaction of the one user. If that is aborted and the user
   did not ask for it, the next call without a handle raises TransactionAbortedError, once: what was
   sent since the last commit is lost, and the user continues at the restart points.
3. Calls that the user made before that error, and that run later (an event loop queues them), are
   refused, too.
4. A poll means no transaction: it tells the one user alone.
5. A call that waits for brokers holds ``lock``. An abort does not wait for it: ``interrupt`` ends
   the producer's transaction first, without the lock, so that the call returns.

Longer than other modules: each call checks the membership, the producer and what has ended under
one lock, in an order that is easier to verify in one place.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import (
    KafkaRebalanceError,
    PartitionsLostError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from ..produce.producer import GroupMetadata, Offset, Transaction
from .boundaries import Boundaries
from .members.membership import ProducerMembership
from .observer import Outcome, ProducerObserver
from .options import ProducerOptions
from .rates import Rates
from .restart_points import (
    MAX_BYTES,
    OVERHEAD_BYTES,
    check,
    chosen_points,
    encoded,
    key_of,
    number_of,
)
from .writer import Writer, break_off, offset_of

log = logging.getLogger(__name__)

_ABORT_S = 10.0

_BY_THE_APPLICATION = "by the application"

_HAS_HANDLE = "a transaction is open that has a handle: use that"

_COMMITTED = "it has been committed before this call"

#: Why the calls of a handle are refused from then on.
CLOSED = "the producer group is closed"

#: ``made`` of a call that runs as it is made.
NOW = math.inf

#: What ``send_at_once`` returns for a record that it has not sent.
NOT_AT_ONCE = object()

#: What records can be refused for, with the errors of Arrow data that derive from no others. Other
#: errors are raised by the handlers of signals.
_REFUSALS = (
    *(kafka_errors.KafkaError, KafkaRebalanceError),
    *(TypeError, ValueError, NotImplementedError, MemoryError),
)

_TORN = "a call that sent in it was interrupted, so it may have a part of the records"

#: What keeps a transaction from beginning, or from going on.
_FAILURES = (kafka_errors.KafkaError, KafkaRebalanceError, OSError)

_IN_DOUBT = (
    "the answer to its commit is missing, so it may have been committed; a poll assigns the owned "
    "source partitions again, with the restart points in the log"
)


@dataclass(eq=False)
class Handle:
    """A transaction that its callers name.

    Attributes
    ----------
    ended : str or None
        Why it takes no calls any more.
    is_aborting : bool
        Whether an abort has interrupted it, and is yet to return.
    """

    ended: str | None = None
    is_aborting: bool = False


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
    tellings : int
        How often a call without a handle has raised TransactionAbortedError. Takes no lock.
    made : float
        ``tellings`` when the call was made that runs now.
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
        self.tellings = 0
        self.made: float = NOW
        self._handle: Handle | None = None
        self._untold: str | None = None  # why the one user's transaction was aborted
        self._told = ""  # the same, of the last one that it was told of
        self._interrupted: str | None = None  # why the open one was, while a call is in it
        self._options = options
        largest = {options.topic: MAX_BYTES + OVERHEAD_BYTES}  # whatever the user's records may be
        self._writer = Writer(options.producer, self._committer, largest)
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

    def begin(self) -> Handle:
        """Open a transaction with a handle; nothing is sent yet.

        Raises
        ------
        IllegalStateError
            Another transaction is open.
        TransactionAbortedError
            The last one without a handle was aborted, and this is the first call since.
        """
        with self.lock:
            self._enter(None)
            if self._is_begun():
                raise kafka_errors.IllegalStateError("a transaction is open; end it first")
            self._handle = Handle()
            return self._handle

    def send(
        self,
        handle: Handle | None,
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
            The source partition is not owned; the transaction continues.
        """
        if restart_point is not None:
            check(restart_point)
        if type(source_partition) is not int:
            source_partition = number_of(source_partition)
        with self.lock:
            if not self._passes(handle, self.made):
                self._enter(handle)
            sources: Collection[int] | None = None
            if source_partition not in self._counts:
                sources = self._opened_for(source_partition)
            transaction = self._writer.transaction
            assert transaction is not None
            try:
                delivery = transaction.send(
                    topic, value, key, headers, partition, timestamp_ms, future=future
                )
                if sources is None:
                    assert source_partition is not None
                    self._counts[source_partition] += 1
                    self.boundaries.sent_again(source_partition, restart_point)
                else:
                    for p in sources:
                        self._counts[p] += 1
                    self.boundaries.sent(sources, restart_point, time.monotonic)
            except _REFUSALS as error:
                self._refuse(error)
                raise
            except BaseException:
                self._doom_torn()
                raise
            return delivery

    def send_quickly(
        self,
        handle: Handle | None,
        source_partition: int | None,
        restart_point: str | None,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> bool:
        """Send a record as ``send`` does; or do nothing and return False, if there is more to do.

        For most records: the source partition is in the transaction already, and the record needs
        no more than a copy. Kept flat, since calls are most of what a record costs.
        """
        if restart_point is not None:
            check(restart_point)
        lock = self.lock
        if not lock.acquire(False):
            return False
        try:
            transaction = self._writer.transaction
            if (
                transaction is None
                or type(source_partition) is not int
                or source_partition not in self._counts
                or self._handle is not handle
                or self._untold is not None
                or self.made < self.tellings
                or self.membership.ownership.doomed is not None
            ):
                return False
            append = transaction.at_once.get(topic)
            if append is None or not append(
                transaction.handle, key, value, headers, partition, timestamp_ms
            ):
                return False
            self._counts[source_partition] += 1
            boundaries = self.boundaries
            boundaries.records += 1
            boundaries.last_points[source_partition] = restart_point
            return True
        except BaseException:  # of a signal's handler, between the record and its restart point
            self._doom_torn()
            raise
        finally:
            lock.release()

    def send_batch(
        self,
        handle: Handle | None,
        source_partition: int | None,
        restart_point: str | None,
        topic: str,
        data: Any,
        timestamp_ms: int | None,
    ) -> None:
        """Send the rows of Arrow data, of a source partition or of all owned ones.

        Raises
        ------
        TransactionAbortedError, PartitionsLostError
            As ``send``.
        TypeError, ValueError, RecordTooLargeError
            A column or row is not allowed. The transaction is aborted, since it may have a part of
            the rows.
        """
        if restart_point is not None:
            check(restart_point)
        if type(source_partition) is not int:
            source_partition = number_of(source_partition)
        with self.lock:
            if not self._passes(handle, self.made):
                self._enter(handle)
            if not data.num_rows and restart_point is None:
                return  # a transaction with nothing to commit would never be due
            sources = self._opened_for(source_partition)
            transaction = self._writer.transaction
            assert transaction is not None
            try:
                transaction.send_batch(topic, data, timestamp_ms=timestamp_ms)
                for p in sources:
                    self._counts[p] += data.num_rows
                self.boundaries.sent(sources, restart_point, time.monotonic, data.num_rows)
            except _REFUSALS as error:
                if isinstance(error, TransactionAbortedError) or self._writer.is_over:
                    raise self._give_up(_says(error)) from error
                self._abort(_says(error))
                raise
            except BaseException:
                self._doom_torn()
                raise

    def send_at_once(
        self,
        handle: Handle | None,
        made: float,
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
        if type(source_partition) is not int:
            source_partition = number_of(source_partition)
        if not self.lock.acquire(blocking=False):
            return NOT_AT_ONCE
        try:
            transaction, ownership = self._writer.transaction, self.membership.ownership
            if (
                source_partition is None
                or source_partition not in self._counts
                or not self._passes(handle, made)
                or transaction is None
                or self._writer.waits_for(topic)
                or self.boundaries.due_with_next(time.monotonic)
                or (self.boundaries.automatic and ownership.asked_back_now)
            ):
                return NOT_AT_ONCE
            try:
                delivery = transaction.send(topic, *arguments, future=future)
                self._counts[source_partition] += 1
                self.boundaries.sent_again(source_partition, restart_point)
            except TransactionAbortedError:
                return NOT_AT_ONCE  # aborting needs a broker
            except _REFUSALS:
                raise
            except BaseException:
                self._doom_torn()
                raise
            return delivery
        finally:
            self.lock.release()

    def commit(self, handle: Handle | None, points: str | Mapping[int, str] | None) -> None:
        """Commit the records and these restart points; None: those given with the records.

        Only the handle ends if nothing was sent and no restart point is to be moved.

        Raises
        ------
        TransactionAbortedError
            The transaction is not committed, or it is not known whether it is.
        OptionError, PartitionsLostError
            A restart point is missing, not allowed, or for a source partition that is not owned;
            the transaction stays open.
        """
        with self.lock:
            self._enter(handle)
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
                self._end_empty()
                return
            for p in values:
                if p not in self._counts:
                    self._opened_for(p)
            try:
                written = self._write(values)
                self._commit_by(values)
                self._committed(chosen, written)
            except TransactionAbortedError as error:
                raise self._give_up(error.reason) from error
            except TransactionInDoubtError as error:
                raise self._resolve() from error
            except BaseException:  # of a signal's handler, as KeyboardInterrupt is
                self._interrupted_commit()
                raise

    def abort(self, handle: Handle | None) -> None:
        """Abort the transaction, if any; the one user is then not told of an earlier abort.

        A call of another thread that waits in the transaction raises TransactionAbortedError.
        """
        self.interrupt(handle)
        with self.lock:
            if handle is not None:
                interrupted, handle.is_aborting = handle.is_aborting, False
                if interrupted and handle.ended is not None:
                    return  # by the call that was interrupted
                self._enter(handle)
            elif self._handle is not None:
                raise kafka_errors.IllegalStateError(_HAS_HANDLE)
            if self._is_begun():
                self._abort(_BY_THE_APPLICATION)
            self._end_handle(_BY_THE_APPLICATION)
            if handle is None:
                self._untold = None

    def interrupt(self, handle: Handle | None) -> None:
        """Have no call send in this transaction any more, also if one is waiting; never waits.

        Any thread. ``abort`` comes next. Does nothing if the commit is sent.
        """
        transaction = self._writer.transaction  # first, or it might be a later one
        if self._handle is not handle or transaction is None:
            return
        if self._interrupt(transaction, _BY_THE_APPLICATION) and handle is not None:
            handle.is_aborting = True

    def _interrupt(self, transaction: Transaction, reason: str) -> bool:
        self._interrupted = self._interrupted or reason
        if not break_off(transaction, reason):
            self._interrupted = None
            return False
        return True

    def _interrupt_doomed(self) -> None:
        """Have the call return that waits in a doomed transaction; nobody waits for its lock."""
        with self.membership.changed:
            doomed, transaction = self.membership.ownership.doomed, self._writer.transaction
        if doomed is not None and transaction is not None:
            self._interrupt(transaction, doomed)

    def tell_again(self, reason: str) -> None:
        """The TransactionAbortedError of a call without a handle has reached no caller."""
        self._untold = reason

    def abort_doomed(self) -> None:
        """Abort the open transaction if it is doomed, or have the call that uses it do so."""
        if not self.lock.acquire(blocking=False):
            self._interrupt_doomed()
            return
        try:
            with self.membership.changed:
                doomed = self.membership.ownership.doomed
            if doomed is not None:
                self._abort(doomed)
        finally:
            self.lock.release()

    def raise_aborted(self) -> None:
        """Raise TransactionAbortedError if an abort was not reported to the one user yet.

        Aborts a doomed transaction first, with a handle or without.
        """
        if self.membership.ownership.doomed is None and self._untold is None:
            return
        self._interrupt_doomed()
        with self.lock:
            self._abort_if_doomed()
            self._tell_the_user(NOW)

    def may_commit_by_itself(self) -> bool:
        """Whether a commit that is due may happen: a handle's transaction ends by its handle."""
        return self._handle is None and self._untold is None

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
                self.made = NOW
                self.commit(None, None)
        except (TransactionAbortedError, kafka_errors.KafkaError) as error:
            log.info("producer group %s: %s", self._options.group_id, error)
        if self._is_begun():
            self._writer.abort(CLOSED, _ABORT_S)
            with self.membership.changed:
                self.membership.ownership.aborted()
            self._tell(Outcome.ABORTED)
        self._end_handle(CLOSED)

    def _passes(self, handle: Handle | None, made: float) -> bool:
        """Whether ``_enter`` has nothing to do; quick."""
        return (
            self._handle is handle
            and self._untold is None
            and made >= self.tellings
            and self.membership.ownership.doomed is None
        )

    def _enter(self, handle: Handle | None) -> None:
        """Refuse a call whose transaction has ended. Aborts a doomed one first."""
        self._abort_if_doomed()
        if handle is None:
            self._tell_the_user(self.made)
            if self._handle is not None:
                raise kafka_errors.IllegalStateError(_HAS_HANDLE)
        elif handle is not self._handle:
            raise self._error(handle.ended or _COMMITTED)

    def _tell_the_user(self, made: float) -> None:
        reason = self._untold
        if reason is not None:
            if self._handle is None and self._is_begun():
                self._abort(reason)  # its records come behind aborted ones
            raise self._told_of(reason)
        if made < self.tellings:
            raise self._error(self._told)

    def _told_of(self, reason: str) -> TransactionAbortedError:
        """The error for the one user; it counts as reported."""
        self._untold, self._told = None, reason
        self.tellings += 1
        return self._error(reason)

    def _abort_if_doomed(self) -> None:
        with self.membership.changed:
            doomed = self.membership.ownership.doomed
        if doomed is not None:
            self._abort(doomed)

    def _end_empty(self) -> None:
        """End a handle's transaction that has nothing to commit."""
        if self._handle is not None and self._is_begun():
            self._roll_back("nothing was sent")
        self._end_handle(_COMMITTED)

    def _end_handle(self, why: str) -> None:
        if self._handle is not None:
            self._handle.ended = why
            self._handle = None

    def _is_begun(self) -> bool:
        with self.membership.changed:
            return self.membership.ownership.touched is not None

    def _opened_for(self, source_partition: int | None) -> Collection[int]:
        """Start the transaction if there is none, and add these source partitions to it."""
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
            self._touch(new)
        except _FAILURES as error:
            raise self._give_up(_says(error)) from error
        except BaseException:
            self._writer.tear()
            if not begun:
                self._roll_back(_TORN, 0)
            raise
        self._counts |= dict.fromkeys(new, 0)
        if not begun:
            self._begun_at = time.monotonic()
        self.boundaries.begin(time.monotonic)
        return sources

    def _touch(self, partitions: Collection[int]) -> None:
        with self.membership.changed:
            ownership = self.membership.ownership
            owned = [p for p in partitions if ownership.owns(p)]
            ownership.touch(owned)
            if len(owned) < len(partitions):
                ownership.doom(
                    "this member has lost a source partition that it was about to send records of"
                )

    def _refuse(self, error: Exception) -> None:
        """Raise TransactionAbortedError if not only this record failed."""
        if isinstance(error, TransactionAbortedError) or self._writer.is_over:
            raise self._give_up(_says(error)) from error
        if not any(self._counts.values()):
            # Or a revoke would wait for it. There is nothing to go back for.
            self._roll_back("its first record was refused")

    def _write(self, points: Mapping[int, bytes]) -> Mapping[int, Any]:
        """Send restart points; the commit is under way from then on."""
        options, transaction = self._options, self._writer.transaction
        assert transaction is not None
        try:
            written = {
                p: transaction.send(
                    options.topic, value, key_of(options.group_id, p), None, p, future=True
                )
                for p, value in points.items()
            }
        except _FAILURES as error:
            raise TransactionAbortedError(_says(error), {}) from error
        with self.membership.changed:
            ownership = self.membership.ownership
            if not ownership.begin_commit():
                raise TransactionAbortedError(ownership.doomed or "", {})
        return written

    def _doom_torn(self) -> None:
        """A signal's handler has raised amid a call: what was sent may be without its point."""
        self._writer.tear()
        with self.membership.changed:
            self.membership.ownership.doom(_TORN)

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
        self._end_handle(_COMMITTED)
        self.rates.committed({p: self._counts.get(p, 0) for p in chosen}, time.monotonic())
        self._forget(Outcome.COMMITTED)

    def _give_up(self, reason: str) -> TransactionAbortedError:
        """Abort the transaction; return the error to raise."""
        return self._ended_by(self._abort, self._interrupted or reason)

    def _ended_by(self, end: Callable[[str], None], reason: str) -> TransactionAbortedError:
        has_handle = self._handle is not None
        end(reason)
        return self._error(reason) if has_handle else self._told_of(reason)

    def _error(self, reason: str) -> TransactionAbortedError:
        with self.membership.changed:
            return TransactionAbortedError(reason, self.membership.ownership.restart_points)

    def _abort(self, reason: str) -> None:
        """Abort the transaction; its handle's calls report it, or the one user's next call."""
        if self._handle is not None:
            self._end_handle(reason)
        else:
            self._untold = reason
        self._roll_back(reason)

    def _roll_back(self, reason: str, abort_s: float = _ABORT_S) -> None:
        log.info("producer group %s: transaction aborted: %s", self._options.group_id, reason)
        self._writer.abort(reason, abort_s)
        with self.membership.changed:
            self.membership.ownership.aborted()
            self.membership.changed.notify_all()
        self._forget(Outcome.ABORTED)

    def _resolve(self) -> TransactionAbortedError:
        """As ``_give_up``, where it may have been committed."""
        return self._ended_by(self._leave_in_doubt, _IN_DOUBT)

    def _interrupted_commit(self) -> None:
        """As ``_resolve``, where another error is on its way: the one user is told later."""
        has_handle = self._handle is not None
        self._writer.tear()
        self._leave_in_doubt(_IN_DOUBT)
        if not has_handle:
            self._untold = _IN_DOUBT

    def _leave_in_doubt(self, reason: str) -> None:
        """Let the restart points show whether the transaction was committed.

        What is owned is lost now. It is assigned again, with the restart points that are read once
        the broker has decided, at the latest when the transaction times out.
        """
        log.warning("producer group %s: %s", self._options.group_id, reason)
        self._end_handle(reason)
        self._writer.abort(reason, 0)  # unless its commit is on its way
        with self.membership.changed:
            self.membership.ownership.in_doubt()
        self.membership.wake()
        self._forget(Outcome.IN_DOUBT)

    def _tell(self, outcome: Outcome) -> None:
        begun_at, commit_s = self._begun_at, self._commit_s
        self._begun_at = self._commit_s = None
        if self.observer is not None and begun_at is not None:
            took_s = time.monotonic() - begun_at
            self.observer.transaction_ended(outcome, self.boundaries.records, took_s, commit_s)

    def _forget(self, outcome: Outcome) -> None:
        self._tell(outcome)
        self._interrupted = None
        self._counts.clear()
        self.boundaries.end()


def _says(error: BaseException) -> str:
    """The reason that an error gives for an abort."""
    if isinstance(error, TransactionAbortedError):
        return error.reason
    return f"{type(error).__name__}: {error}"
