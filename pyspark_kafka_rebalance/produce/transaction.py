"""Transactions of one transactional id: events in, requests out. Pure.

A state machine without I/O, threads and clock, as h11 is for HTTP. Each event returns a `Step`: the
requests to send, and what ended. The owner sends each request, waits a little before one whose
``attempt`` is not 0, and reports the answer (``answered``), or that there is none (``unanswered``:
the connection was lost, or the request timed out). Requests to one broker may share a connection.

A transaction is a handle, a number. It goes through these phases::

    open -> committing -> committed
      |         |   \\---> in doubt -> committed, aborted, not knowable
      \\--------> aborting -> aborted

``open`` and ``committing`` turn into ``aborting`` by themselves when the transaction cannot commit
any more. The outcome comes in ``Step.ended``, once.

**Transactions v2** (``transaction.version`` 2, KIP-890): a partition joins with its first Produce,
a group with its TxnOffsetCommit. Each EndTxn makes a new epoch, so what arrives late has an old one
and is refused. An EndTxn without an answer is sent again; the coordinator recognizes it.

**Transactions v1**: partitions and groups join by AddPartitionsToTxn and AddOffsetsToTxn. The epoch
stays, so what arrives late counts for the transaction that is open then: a delayed EndTxn(commit)
commits half of it. The defence: whenever a request of a transaction may still be on its way after
its end, a new epoch (InitProducerId with the current one, KIP-360) comes before the next. A new
epoch alone is not enough for a batch that was never acknowledged, and for offsets: their leader
learns of it with the next record, and until then the late one is accepted and, belonging to no
transaction, is committed by the next (KAFKA-14053). So the machine *sweeps*: with the new epoch it
opens a transaction that has just these partitions and groups, and aborts it. The markers bring the
new epoch to the leaders, and abort what came late. If a process dies between the abort and the
sweep, only leaders that verify (Kafka 3.6 and later) are safe. Neither can a sweep reach the old
producer id when the epochs of an id are used up, every 32,767 new epochs.

**In doubt** is an EndTxn(commit) that was refused after another copy was sent. (If there was no
other, a refusal means that nothing was committed.) Then the machine asks the leader of a partition
with a record of the transaction: once the last stable offset is past it, a fetch with
``read_committed`` shows whether it is committed. If no record can be read, it asks the groups whose
offsets are in the transaction, for stable ones. These show it if they differ, metadata included,
from those before, and no others were committed since; put a name of the transaction into the
metadata if another member may commit equal ones. ``Outcome.NOT_KNOWABLE`` is left for transactions
whose records are deleted or may not be read, and whose offsets, if any, do not show it.

Invariants:
 1. A transaction has one outcome, reported once. COMMITTED is reported only if EndTxn(commit) was
    answered so, or a record or the group's offsets show it.
 2. One request at a time is outstanding at the transaction coordinator, and EndTxn only when no
    request of its transaction is outstanding anywhere.
 3. After an EndTxn(commit) nothing else ends that transaction, unless a copy was refused for good.
 4. No request has an epoch under which an earlier transaction may still have a request on its way.
 5. No transaction sends anything before the sweep of an earlier one is done.
 6. The sequence numbers of a partition have no gap within an epoch, and restart at 0 with another.
 7. A producer that is fenced or has failed sends questions alone, until ``initialize``.

One thread at a time calls the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from kafka.structs import TopicPartition

from ..errors import TransactionAbortedError
from .open_transaction import (
    SEQUENCES,
    Batch,
    Group,
    MemberNow,
    OffsetCommit,
    OpenTransaction,
    Phase,
)
from .requests import (
    GROUP,
    TRANSACTION,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    DescribeTransactions,
    EndTxn,
    Fetch,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
    Versions,
)
from .transaction_errors import (
    TOO_LARGE,
    Errors,
    Outcome,
    Verdict,
    outcome_by_records,
    refused_commit,
    verdict_of,
    worst,
)
from .transaction_step import Ended, Halved, Identity, Standing, Step, Sweep, name_of, slot_of, why

#: The last epoch of a producer id is the coordinator's, to fence with. Brokers may answer it where
#: they continue with another producer id; InitProducerId returns that.
_COORDINATORS_EPOCH = 32_767


class TransactionMachine:
    """The producer's side of the transactions of one transactional id.

    Parameters
    ----------
    transactional_id : str
        Names the producer across its incarnations.
    transaction_timeout_ms : int
        The coordinator aborts a transaction that is open for longer. Milliseconds.
    versions : Versions
        The versions of the requests, of one transaction protocol.
    """

    def __init__(
        self, transactional_id: str, transaction_timeout_ms: int, versions: Versions
    ) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._versions = versions
        self._standing = Standing.NEW
        self._cause = ""
        self._error = 0
        self._identity = Identity()
        self._usable = False  # whether the identity may be used: no new epoch is due
        self._looks_back = False  # whether the last producer is to be asked for first
        self._last: Identity | None = None  # the last producer, which gets a transaction of v1
        self._sequences: dict[TopicPartition, int] = {}
        self._sweep = Sweep()
        self._transaction: OpenTransaction | None = None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._outstanding: dict[int, Request] = {}
        self._at_coordinator = 0  # the number of the last request to it
        self._attempts: dict[tuple[Any, ...], int] = {}
        self._handles = count(1)
        self._numbers = count(1)
        self._batches = count(1)
        # Of the current event.
        self._ended: Ended | None = None
        self._delivered: list[int] = []
        self._halved: list[Halved] = []

    @property
    def standing(self) -> Standing:
        """What the producer may do."""
        return self._standing

    @property
    def cause(self) -> str:
        """Why the producer is fenced, or has failed."""
        return self._cause

    @property
    def error(self) -> int:
        """The error code that fenced the producer, or made it fail; 0 if none did."""
        return self._error

    @property
    def open_transaction(self) -> int | None:
        """The handle of the transaction that takes records and offsets, if there is one."""
        current = self._transaction
        return current.handle if current is not None and current.phase is Phase.OPEN else None

    @property
    def aborting(self) -> bool:
        """Whether the transaction is about to be aborted: what was not sent need not be."""
        return self._transaction is not None and self._transaction.phase is Phase.ABORTING

    @property
    def doom(self) -> str:
        """Why the transaction is about to be aborted; empty if it is not."""
        current = self._transaction
        return "" if current is None or current.phase is not Phase.ABORTING else current.cause

    @property
    def owes_nothing(self) -> bool:
        """Whether all records and offsets of the open transaction are acknowledged, if any are."""
        return self._transaction is None or self._transaction.owes_nothing()

    @property
    def identity(self) -> Identity:
        """The current producer id and epoch; -1 before the first."""
        return self._identity

    @property
    def transaction(self) -> int | None:
        """The handle of the transaction whose outcome is not known yet, if there is one."""
        return None if self._transaction is None else self._transaction.handle

    @property
    def outstanding(self) -> Mapping[int, Request]:
        """The requests without an answer, by number."""
        return self._outstanding

    @property
    def versions(self) -> Versions:
        """The versions of the requests. May be set, when brokers are upgraded: see ``upgrade``."""
        return self._versions

    # Events of the application.

    def initialize(self) -> Step:
        """Take over the transactional id: fence its last producer, and abort its open transaction.

        Also the way to continue after FENCED and FAILED. The owner decides whether a fenced
        producer may take its id back: not if another process is meant to have it.
        """
        if self._transaction is not None:
            raise RuntimeError(f"transaction {self._transaction.handle} has not ended")
        self._standing, self._cause, self._error = Standing.READY, "", 0
        self._identity, self._usable = Identity(), False
        self._looks_back, self._last = self._versions.may_follow_v2, None
        return self._step()

    def upgrade(self, versions: Versions) -> Step:
        """Use other versions from now on, between two transactions."""
        if self._transaction is not None:
            raise RuntimeError(f"transaction {self._transaction.handle} has not ended")
        rises = versions.transaction_version > self._versions.transaction_version
        self._versions, self._usable = versions, self._usable and not rises
        return self._step()

    def downgrade(self) -> Step:
        """The brokers' transactions are v1 by now. One of v2 that is open is aborted."""
        current = self._transaction
        # A broker says what it makes of an EndTxn that was sent.
        if self._versions.transaction_version >= 2 and (current is None or not current.ends):
            self._downgrade("the brokers' transactions were downgraded to v1")
        return self._step()

    def begin(self) -> int:
        """Start a transaction, and return its handle. Nothing is sent yet.

        Raises
        ------
        TransactionAbortedError
            The producer is fenced or has failed.
        RuntimeError
            The outcome of another transaction is not known yet.
        """
        if self._transaction is not None:
            raise RuntimeError(f"transaction {self._transaction.handle} has not ended")
        if self._standing is not Standing.READY:
            raise TransactionAbortedError(self._cause or "the producer is not initialized", {})
        self._transaction = OpenTransaction(next(self._handles))
        return self._transaction.handle

    def add_records(
        self, transaction: int | None, partition: TopicPartition, record_count: int
    ) -> Step:
        """Add a batch of records; its Produce comes when it is its turn.

        Parameters
        ----------
        transaction : int or None
            None for `open_transaction` where that has changed: raises why.

        Raises
        ------
        TransactionAbortedError
            The transaction has ended, or is about to be aborted.
        """
        batch = Batch(next(self._batches), record_count)
        self._open(transaction).add(partition, batch)
        return self._step(batch.number)

    def add_offsets(
        self,
        transaction: int,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, Offset],
        before: Mapping[TopicPartition, Offset] | None = None,
        member: MemberNow | None = None,
    ) -> Step:
        """Add offsets of one member of a group.

        Parameters
        ----------
        member : MemberNow, optional
            Who commits them whenever they are sent, instead of ``group``. A group that is between
            two generations refuses the present one: they are sent again with the next, until this
            returns None. Called in events of the network, too.
        before : mapping of TopicPartition to Offset, optional
            What the group had before, as far as it is known; ``Offset(-1)`` for none. It lets the
            machine find out what became of the transaction, should that be in doubt.

        Raises
        ------
        TransactionAbortedError
            The transaction has ended, or is about to be aborted.
        ValueError
            The generation is -1, which a group accepts unchecked from anybody.
        """
        current = self._open(transaction)
        if group.generation_id < 0 and not group.is_nobody:
            raise ValueError(f"offsets of group {group.group_id!r} without a member's generation")
        if offsets:
            current.groups.setdefault(group.group_id, Group()).add(
                OffsetCommit(group, dict(offsets), dict(before or {}), member)
            )
        return self._step()

    def announce(
        self, transaction: int, partitions: Iterable[TopicPartition], group_id: str | None = None
    ) -> Step:
        """Announce partitions, and a group, to the coordinator.

        DescribeTransactions then lists the partitions. With transactions v1
        this also saves their way at the commit. With v2 a group need not join, and partitions are
        announced once a record of the transaction is written; a commit that comes before does
        without.

        Raises
        ------
        TransactionAbortedError
            The transaction has ended, or is about to be aborted.
        """
        current = self._open(transaction)
        for partition in partitions:
            current.announce(partition)
        if group_id is not None and self._versions.transaction_version < 2:
            current.groups.setdefault(group_id, Group())
        return self._step()

    def commit(self, transaction: int) -> Step:
        """Commit, as soon as everything is acknowledged.

        Raises
        ------
        TransactionAbortedError
            The transaction has ended, or is about to be aborted.
        """
        self._open(transaction).phase = Phase.COMMITTING
        return self._step()

    def abort(self, transaction: int, cause: str = "the application aborted it") -> Step:
        """Abort; does nothing if the transaction is about to be aborted anyway.

        Raises
        ------
        TransactionAbortedError
            The transaction has ended.
        RuntimeError
            Its EndTxn(commit) was sent.
        """
        current = self._current(transaction)
        if current.phase is Phase.IN_DOUBT or (current.phase is Phase.COMMITTING and current.ends):
            raise RuntimeError(f"the commit of transaction {transaction} was sent")
        self._fail(current, cause)
        return self._step()

    def expire(self, batch: int, reason: str = "") -> Step:
        """A batch has waited for its acknowledgement for too long: its transaction is aborted.

        ``reason`` says why it had to wait, as far as that is known.
        """
        current = self._transaction
        if current is not None and current.phase in (Phase.OPEN, Phase.COMMITTING):
            for name, partition in current.partitions.items():
                if any(each.number == batch for each in partition.batches):
                    cause = f"records for {name_of(name)} were not delivered in time"
                    self._fail(current, f"{cause}: {reason}" if reason else cause)
        return self._step()

    # Events of the network.

    def answered(self, number: int, answer: Answer) -> Step:
        """A broker answered request ``number``.

        An answer to a copy that was given up before changes nothing.
        """
        request = self._outstanding.pop(number, None)
        if request is not None:
            self._HANDLERS[type(request)](self, request, answer)
        return self._step()

    def unanswered(self, number: int, *, sent: bool = True) -> Step:
        """There will be no answer: the connection was lost, or the request timed out.

        Parameters
        ----------
        sent : bool
            False if no byte of it left this process: then it cannot arrive later.
        """
        request = self._outstanding.pop(number, None)
        if request is not None:
            self._tried(request)
            self._forget_coordinator(request)
            self._returned(request, unanswered=sent)
        return self._step()

    def _returned(self, request: Request, *, unanswered: bool) -> None:
        """Note that a copy is not outstanding any more, and whether it may still arrive."""
        current = self._of(request)
        if current is None:
            sweeps = isinstance(request, (AddPartitionsToTxn, AddOffsetsToTxn, EndTxn))
            self._sweep.unanswered |= unanswered and sweeps
            return
        current.unanswered |= unanswered
        if isinstance(request, Produce):
            batch = self._batch(request)
            batch.under_way = False
            batch.unanswered |= unanswered
            current.touched[request.partition] = None
        elif isinstance(request, TxnOffsetCommit):
            group = current.groups[request.group.group_id]
            group.under_way = False
            if unanswered:
                group.unaccounted.update(request.offsets)

    # What an answer changes.

    def _coordinator_answered(self, request: FindCoordinator, answer: Answer) -> None:
        verdict = verdict_of(FindCoordinator, answer.error)
        if verdict is Verdict.DONE:
            self._coordinators[request.key_type, request.key] = answer.node
        elif request.key_type == GROUP and verdict > Verdict.RETRY_ELSEWHERE:
            self._group_is_closed(request.key, why(request, answer.error))
        self._settle(request, verdict, answer.error)

    def _group_is_closed(self, group_id: str, cause: str) -> None:
        """A group that cannot be found is asked nothing, and swept no more."""
        self._sweep.groups.discard(group_id)
        current = self._transaction
        if current is not None and group_id in current.groups:
            current.groups[group_id].asked = True
            current.cause = current.cause or cause

    def _identity_answered(self, request: InitProducerId, answer: Answer) -> None:
        verdict = verdict_of(InitProducerId, answer.error)
        if verdict is Verdict.DONE:
            self._take(Identity(answer.producer_id, answer.producer_epoch))
        self._settle(request, verdict, answer.error)

    def _last_answered(self, request: DescribeTransactions, answer: Answer) -> None:
        verdict = verdict_of(DescribeTransactions, answer.error)
        if verdict is Verdict.DONE and not answer.is_open and answer.producer_id >= 0:
            self._last = Identity(answer.producer_id, answer.producer_epoch)
        self._looks_back = verdict in (Verdict.RETRY, Verdict.RETRY_ELSEWHERE)
        self._settle(request, verdict if self._looks_back else Verdict.DONE, answer.error)

    def _last_opened(self, request: AddOffsetsToTxn, verdict: Verdict, code: int) -> None:
        """InitProducerId aborts it, or says what is wrong."""
        if verdict not in (Verdict.RETRY, Verdict.RETRY_ELSEWHERE):
            self._last, verdict = None, Verdict.DONE
        self._settle(request, verdict, code)

    def _partitions_answered(self, request: AddPartitionsToTxn, answer: Answer) -> None:
        codes = answer.errors.values() if answer.errors else [answer.error]
        verdict, code = worst(AddPartitionsToTxn, codes)
        current = self._of(request)
        if current is None:
            self._sweep_answered(answer, verdict)
        elif verdict is Verdict.DONE:
            for partition in request.partitions:
                current.joins(partition)
        self._settle(request, verdict, code, answer)

    def _sweep_answered(self, answer: Answer, verdict: Verdict) -> None:
        """A partition that is deleted or forbidden by now cannot be swept."""
        for partition, code in answer.errors.items():
            if code == Errors.UNKNOWN_TOPIC_OR_PARTITION or (
                verdict_of(AddPartitionsToTxn, code) is Verdict.ABORT
            ):
                self._sweep.partitions.discard(partition)
        self._sweep.joined_partitions |= verdict is Verdict.DONE

    def _group_joined(self, request: AddOffsetsToTxn, answer: Answer) -> None:
        verdict = verdict_of(AddOffsetsToTxn, answer.error)
        if self._last is not None:
            self._last_opened(request, verdict, answer.error)
            return
        current = self._of(request)
        if verdict is Verdict.DONE and current is not None:
            current.groups[request.group_id].joined = True
        elif verdict is Verdict.DONE:
            self._sweep.joined_groups.add(request.group_id)
        elif verdict is Verdict.ABORT and current is None:
            self._sweep.groups.discard(request.group_id)
        self._settle(request, verdict, answer.error)

    def _offsets_answered(self, request: TxnOffsetCommit, answer: Answer) -> None:
        codes = answer.errors.values() if answer.errors else [answer.error]
        verdict, code = worst(TxnOffsetCommit, codes)
        self._returned(request, unanswered=False)
        current = self._of(request)
        waiting = current.groups[request.group.group_id].waiting if current is not None else None
        if verdict is Verdict.DONE and waiting:
            waiting.popleft()
        elif waiting and waiting[0].member is not None and code in _BETWEEN_GENERATIONS:
            verdict = Verdict.RETRY
        self._settle(request, verdict, code, answer)

    def _records_answered(self, request: Produce, answer: Answer) -> None:
        verdict = verdict_of(Produce, answer.error)
        self._returned(request, unanswered=False)
        current = self._of(request)
        assert current is not None
        partition, batch = current.partitions[request.partition], self._batch(request)
        if verdict is Verdict.DONE:
            partition.batches.remove(batch)
            if answer.base_offset >= 0:
                current.written.setdefault(request.partition, answer.base_offset)
            self._delivered.append(batch.number)
        elif answer.error == Errors.OUT_OF_ORDER_SEQUENCE_NUMBER and not partition.is_first(batch):
            verdict = Verdict.RETRY  # one before it has not arrived
        elif answer.error in TOO_LARGE and batch.record_count > 1 and current.goes_on:
            self._halved.append(partition.halve(batch, next(self._batches)))
            verdict = Verdict.DONE  # of this copy
        self._settle(request, verdict, answer.error, answer)

    def _end_answered(self, request: EndTxn, answer: Answer) -> None:
        verdict = verdict_of(EndTxn, answer.error)
        current = self._of(request)
        if verdict is Verdict.DONE and 0 <= answer.producer_epoch < _COORDINATORS_EPOCH:
            self._take(Identity(answer.producer_id, answer.producer_epoch))
        if current is None:
            self._swept(request, verdict, answer.error)
        elif verdict is Verdict.DONE:
            self._end(Outcome.COMMITTED if request.committed else Outcome.ABORTED)
        elif self._is_too_new(request, answer.error):
            # No copy was written: a coordinator recognizes the next one by what it wrote.
            self._downgrade(why(request, answer.error))
        elif verdict <= Verdict.RETRY_ELSEWHERE:
            current.unanswered |= verdict is Verdict.RETRY_ELSEWHERE  # it may be written
        elif request.committed:
            self._commit_refused(current, verdict, why(request, answer.error))
        else:  # there is nothing of it, or it is another's to abort
            current.new_epoch = True
            self._end(Outcome.ABORTED)
            if answer.error == Errors.PRODUCER_FENCED and current.waits_for_the_last:
                # Of transactions v2 also the answer to the current epoch, while the markers of the
                # last transaction are not written. InitProducerId tells the two apart.
                verdict = Verdict.NEW_EPOCH
        if current is not None:
            self._settle(request, verdict, answer.error)

    def _commit_refused(self, current: OpenTransaction, verdict: Verdict, cause: str) -> None:
        current.cause = current.cause or cause
        if refused_commit(verdict, current.ends > 1) is None:
            current.phase = Phase.IN_DOUBT
            current.new_epoch = True
            self._usable = False
        elif verdict is Verdict.ABORT:
            current.phase = Phase.ABORTING
        else:
            current.new_epoch = True
            self._end(Outcome.ABORTED)

    def _swept(self, request: EndTxn, verdict: Verdict, code: int) -> None:
        if verdict is Verdict.DONE:
            self._usable = not (self._renews and self._sweep.unanswered)
            self._sweep = Sweep()
        elif verdict > Verdict.RETRY_ELSEWHERE:
            self._sweep, self._usable = self._sweep.again(), False
        self._settle(request, verdict, code)

    def _record_found(self, request: Fetch, answer: Answer) -> None:
        verdict = verdict_of(Fetch, answer.error)
        current = self._of(request)
        if current is None:
            return
        if verdict is Verdict.DONE:
            outcome = outcome_by_records(current.producer_id, request.fetch_offset, answer)
            if outcome is None:
                verdict = Verdict.RETRY
            else:
                self._end(outcome)
        elif verdict is Verdict.FATAL:
            del current.written[request.partition]
            verdict = Verdict.DONE  # of the question alone
        self._settle(request, verdict, answer.error)

    def _asked_answered(self, request: OffsetFetch, answer: Answer) -> None:
        codes = [answer.error, *answer.errors.values()]
        verdict, code = worst(OffsetFetch, codes)
        current = self._transaction
        if current is None or current.phase is not Phase.IN_DOUBT:
            return
        group = current.groups[request.group_id]
        if verdict is Verdict.DONE:
            group.asked = True
            outcome = group.outcome(answer.offsets)
            if outcome is not None:
                self._end(outcome)
        elif verdict is Verdict.FATAL:
            group.asked = True
            verdict = Verdict.DONE  # of the question alone
        self._settle(request, verdict, code)

    _HANDLERS: Mapping[type[Request], Callable[[TransactionMachine, Any, Answer], None]] = {
        FindCoordinator: _coordinator_answered,
        InitProducerId: _identity_answered,
        DescribeTransactions: _last_answered,
        AddPartitionsToTxn: _partitions_answered,
        AddOffsetsToTxn: _group_joined,
        TxnOffsetCommit: _offsets_answered,
        Produce: _records_answered,
        EndTxn: _end_answered,
        OffsetFetch: _asked_answered,
        Fetch: _record_found,
    }

    # The consequences of a verdict.

    def _settle(
        self, request: Request, verdict: Verdict, code: int, answer: Answer | None = None
    ) -> None:
        """Do what a verdict means for the producer, and for the transaction that is open."""
        if (current := self._of(request)) is not None:
            current.waits_for_the_last = code == Errors.CONCURRENT_TRANSACTIONS
        if verdict is Verdict.DONE:
            self._attempts.pop(slot_of(request), None)
            return
        self._tried(request)
        if self._is_too_new(request, code) and not isinstance(request, EndTxn):
            self._downgrade(why(request, code))
        elif verdict is Verdict.RETRY_ELSEWHERE:
            self._forget_coordinator(request)
        elif verdict >= Verdict.FENCED:
            fenced = verdict is Verdict.FENCED
            self._error = code
            self._stop(Standing.FENCED if fenced else Standing.FAILED, why(request, code, answer))
        elif verdict >= Verdict.ABORT:
            self._fail_of(request, verdict, why(request, code, answer))

    def _fail_of(self, request: Request, verdict: Verdict, cause: str) -> None:
        current = self._transaction
        if request.transaction is None and not isinstance(request, FindCoordinator):
            if verdict is Verdict.NEW_EPOCH:
                self._sweep, self._usable = self._sweep.again(), False
        elif current is not None and current.phase in (Phase.OPEN, Phase.COMMITTING):
            current.new_epoch |= verdict is Verdict.NEW_EPOCH
            self._fail(current, cause)

    def _is_too_new(self, request: Request, code: int) -> bool:
        """Whether a broker refused a request of transactions v2, since they were downgraded."""
        return (
            code == Errors.UNSUPPORTED_VERSION
            and self._versions.transaction_version >= 2
            and isinstance(request, (Produce, TxnOffsetCommit, EndTxn))
        )

    def _downgrade(self, cause: str) -> None:
        """Go on with transactions v1, and abort what is open, by a sweep of its own epoch.

        After a transaction of v2 a coordinator of v1 cannot write what InitProducerId or EndTxn v5
        changes: it answers UNSUPPORTED_VERSION and then CONCURRENT_TRANSACTIONS to everything,
        until another broker coordinates, or the same one again (Kafka 4.3). AddPartitionsToTxn and
        EndTxn v4 it can write, and everything after them.
        """
        current = self._transaction
        self._versions = self._versions.downgraded()
        if current is None or not current.sent:
            return
        self._give_up()
        current.cause = current.cause or cause
        usable = self._usable
        self._end(Outcome.ABORTED)
        self._usable = usable
        self._sweep.partitions.update(current.partitions)
        self._sweep.groups.update(current.groups)
        self._sweep.unanswered = True

    def _fail(self, current: OpenTransaction, cause: str) -> None:
        if current.phase in (Phase.OPEN, Phase.COMMITTING):
            current.phase, current.cause = Phase.ABORTING, cause or "no cause was given"

    def _stop(self, standing: Standing, cause: str) -> None:
        """Send nothing more; what is not in doubt is aborted."""
        self._standing, self._cause, self._usable = standing, cause, False
        self._give_up()
        current = self._transaction
        if current is None or current.phase is Phase.IN_DOUBT:
            return
        current.cause = current.cause or cause
        if current.phase is Phase.COMMITTING and current.ends:
            current.phase = Phase.IN_DOUBT
        else:
            self._end(Outcome.ABORTED)

    def _give_up(self) -> None:
        """Wait for no answer any more, but to questions."""
        for number, request in list(self._outstanding.items()):
            if not isinstance(request, (FindCoordinator, *_QUESTIONS)):
                del self._outstanding[number]
                self._returned(request, unanswered=True)

    def _end(self, outcome: Outcome) -> None:
        """Report the outcome, and note what the next transaction has to wait for."""
        current = self._transaction
        assert current is not None
        cause = "" if outcome is Outcome.COMMITTED else current.cause
        self._ended = Ended(current.handle, outcome, cause)
        self._transaction = None
        self._attempts.clear()
        self._usable = self._usable and self._epoch_goes_on(current)
        if self._versions.transaction_version < 2 and self._sweeps:
            partitions, groups = current.unaccounted()
            self._sweep.partitions.update(partitions)
            self._sweep.groups.update(groups)

    #: The two defences of transactions v1. Tests take them away.
    _renews = True
    _sweeps = True

    def _epoch_goes_on(self, ended: OpenTransaction) -> bool:
        """Whether the next transaction may use the producer's present epoch."""
        if ended.renewed:
            return True
        if self._versions.transaction_version >= 2:
            return not ended.sent
        doubtful = self._renews and ended.unanswered
        return not (doubtful or ended.new_epoch or ended.leaves_a_gap())

    # What is to be sent now.

    def _step(self, batch: int = -1) -> Step:
        """Finish an event: send what is due, report what ended."""
        requests: list[Request] = []
        for request in self._due():
            self._outstanding[request.number] = request
            if isinstance(request, _OF_COORDINATOR):
                self._at_coordinator = request.number
            requests.append(request)
        delivered, halved = tuple(self._delivered), tuple(self._halved)
        step = Step(tuple(requests), self._ended, delivered, batch, halved=halved)
        self._ended, self._delivered, self._halved = None, [], []
        return step

    def _due(self) -> Iterator[Request]:
        self._decide_locally()
        if self._standing is Standing.READY:
            if not self._is_coordinator_busy():
                yield from self._coordinator_due()
            if self._may_send():
                yield from self._records_due()
                yield from self._offsets_due()
        yield from self._questions_due()

    def _decide_locally(self) -> None:
        """End a transaction of which no broker was sent anything, or which cannot be resolved."""
        current = self._transaction
        if current is None:
            return
        waiting = [group for group in current.groups.values() if group.waiting]
        if any(group.may_be_undone() for group in waiting):
            self._fail(current, "older offsets of the transaction may arrive after newer ones")
        takes_offsets = current.phase in (Phase.OPEN, Phase.COMMITTING)
        if takes_offsets and any(not each.under_way and not each.renew() for each in waiting):
            self._fail(current, "this member is out of the group")
        if current.phase is Phase.COMMITTING and not current.sent and current.owes_nothing():
            self._end(Outcome.COMMITTED)
        elif current.phase is Phase.ABORTING and not current.sent:
            self._end(Outcome.ABORTED)
        elif current.phase is Phase.IN_DOUBT and not (current.written or self._to_ask(current)):
            self._end(Outcome.NOT_KNOWABLE)

    def _coordinator_due(self) -> Iterator[Request]:
        """The one request to the transaction coordinator that is next, if any."""
        make = self._next_for_coordinator()
        if make is not None:
            yield from self._to(TRANSACTION, self.transactional_id, make)

    def _next_for_coordinator(self) -> Callable[[int], Request] | None:
        if not self._usable:
            return self._next_for_identity()
        if self._sweep:
            return self._next_of_sweep()
        current = self._transaction
        if current is None:
            return None
        if (
            current.phase in (Phase.OPEN, Phase.COMMITTING)
            and self._versions.transaction_version < 2
        ):
            if current.unjoined:
                return self._add_partitions
            if current.groups_not_joined():
                return self._add_offsets
        elif current.phase is Phase.OPEN and current.announced and current.written:
            return self._add_partitions
        return self._end_txn if self._can_end(current) else None

    def _next_for_identity(self) -> Callable[[int], Request]:
        if self._looks_back:
            return self._describe
        return self._init_producer_id if self._last is None else self._open_for_the_last

    def _next_of_sweep(self) -> Callable[[int], Request]:
        if self._sweep.partitions and not self._sweep.joined_partitions:
            return self._add_partitions
        if self._sweep.groups - self._sweep.joined_groups:
            return self._add_offsets
        return self._end_txn

    def _can_end(self, current: OpenTransaction) -> bool:
        """Whether all is acknowledged, or given up, and no copy is outstanding."""
        if current.phase not in (Phase.COMMITTING, Phase.ABORTING):
            return False
        if any(request.transaction == current.handle for request in self._outstanding.values()):
            return False
        return current.phase is Phase.ABORTING or current.owes_nothing()

    def _may_send(self) -> bool:
        current = self._transaction
        return (
            self._usable
            and not self._sweep
            and current is not None
            and current.phase in (Phase.OPEN, Phase.COMMITTING)
        )

    def _records_due(self) -> Iterator[Request]:
        current = self._transaction
        assert current is not None
        for name in list(current.touched):
            if name not in current.unjoined or self._versions.transaction_version >= 2:
                del current.touched[name]
                for batch in current.partitions[name].sendable():
                    yield self._produce(current, name, batch)

    def _offsets_due(self) -> Iterator[Request]:
        current = self._transaction
        assert current is not None
        for group_id, group in current.groups.items():
            joined = group.joined or self._versions.transaction_version >= 2
            if joined and group.waiting and not group.under_way:
                for request in self._to(GROUP, group_id, self._txn_offset_commit_of(group)):
                    group.under_way = isinstance(request, TxnOffsetCommit)
                    yield request

    def _questions_due(self) -> Iterator[Request]:
        current = self._transaction
        if current is None or current.phase is not Phase.IN_DOUBT:
            return
        if any(isinstance(request, _QUESTIONS) for request in self._outstanding.values()):
            return
        for partition, offset in list(current.written.items())[:1]:
            slot = (Fetch, partition)
            head = self._head(slot, self._versions.fetch, None, current.handle)
            yield Fetch(*head, partition, offset)
            return
        for group_id in self._to_ask(current)[:1]:
            yield from self._to(GROUP, group_id, self._offset_fetch_of(current, group_id))

    def _to_ask(self, current: OpenTransaction) -> list[str]:
        return [name for name, g in current.groups.items() if g.evidence and not g.asked]

    def _is_coordinator_busy(self) -> bool:
        return self._at_coordinator in self._outstanding

    def _to(self, key_type: int, key: str, make: Callable[[int], Request]) -> Iterator[Request]:
        """The request, or first the one that finds its coordinator, unless that is under way."""
        node = self._coordinators.get((key_type, key))
        if node is not None:
            yield make(node)
        elif not any(
            isinstance(r, FindCoordinator) and (r.key_type, r.key) == (key_type, key)
            for r in self._outstanding.values()
        ):
            slot = (FindCoordinator, key_type, key)
            yield FindCoordinator(
                *self._head(slot, self._versions.find_coordinator, None, None), key, key_type
            )

    # The requests.

    def _head(
        self, slot: tuple[Any, ...], version: int, node: int | None, transaction: int | None
    ) -> tuple[int, int, int, int | None, int | None]:
        return next(self._numbers), version, self._attempts.get(slot, 0), node, transaction

    def _producer(self) -> tuple[str, int, int]:
        return self.transactional_id, self._identity.producer_id, self._identity.producer_epoch

    def _init_producer_id(self, node: int) -> InitProducerId:
        head = self._head((InitProducerId,), self._versions.init_producer_id, node, None)
        name, producer_id, epoch = self._producer()
        return InitProducerId(*head, name, self._timeout_ms, producer_id, epoch)

    def _describe(self, node: int) -> DescribeTransactions:
        head = self._head((DescribeTransactions,), 0, node, None)
        return DescribeTransactions(*head, self.transactional_id)

    def _open_for_the_last(self, node: int) -> AddOffsetsToTxn:
        """Of a group that nobody is in; nothing is lost if it arrives late."""
        assert self._last is not None
        name = self.transactional_id
        version = self._versions.add_offsets_to_txn
        head = self._head((AddOffsetsToTxn, name), version, node, None)
        return AddOffsetsToTxn(*head, name, self._last.producer_id, self._last.producer_epoch, name)

    def _sending(self) -> int | None:
        """The handle of the transaction that a request is for; None for a sweep's."""
        current = self._transaction
        if self._sweep or current is None:
            return None
        current.sent = True
        return current.handle

    def _add_partitions(self, node: int) -> AddPartitionsToTxn:
        current = self._transaction
        if self._sweep:
            partitions = tuple(sorted(self._sweep.partitions))
        else:
            assert current is not None
            joins_early = self._versions.transaction_version >= 2
            partitions = tuple(current.announced if joins_early else current.unjoined)
        version = self._versions.add_partitions_to_txn
        head = self._head((AddPartitionsToTxn,), version, node, self._sending())
        return AddPartitionsToTxn(*head, *self._producer(), partitions)

    def _add_offsets(self, node: int) -> AddOffsetsToTxn:
        current = self._transaction
        if self._sweep:
            group_id = min(self._sweep.groups - self._sweep.joined_groups)
        else:
            assert current is not None
            group_id = current.groups_not_joined()[0]
        version = self._versions.add_offsets_to_txn
        head = self._head((AddOffsetsToTxn, group_id), version, node, self._sending())
        return AddOffsetsToTxn(*head, *self._producer(), group_id)

    def _end_txn(self, node: int) -> EndTxn:
        head = self._head((EndTxn,), self._versions.end_txn, node, self._sending())
        current = None if self._sweep else self._transaction
        if current is not None:
            current.ends += 1
        committed = current is not None and current.phase is Phase.COMMITTING
        return EndTxn(*head, *self._producer(), committed)

    def _produce(self, current: OpenTransaction, name: TopicPartition, batch: Batch) -> Produce:
        current.sent = batch.under_way = True
        current.producer_id = self._identity.producer_id
        if batch.base_sequence is None:
            batch.base_sequence = self._sequences.get(name, 0)
            self._sequences[name] = (batch.base_sequence + batch.record_count) % SEQUENCES
        head = self._head((Produce, batch.number), self._versions.produce, None, current.handle)
        records = (batch.number, batch.base_sequence, batch.record_count)
        return Produce(*head, *self._producer(), name, *records, batch.rank)

    def _txn_offset_commit_of(self, group: Group) -> Callable[[int], Request]:
        commit = group.waiting[0]
        slot = (TxnOffsetCommit, commit.group.group_id)

        def make(node: int) -> TxnOffsetCommit:
            head = self._head(slot, self._versions.txn_offset_commit, node, self._sending())
            return TxnOffsetCommit(*head, *self._producer(), commit.group, commit.offsets)

        return make

    def _offset_fetch_of(self, current: OpenTransaction, group_id: str) -> Callable[[int], Request]:
        def make(node: int) -> OffsetFetch:
            slot = (OffsetFetch, group_id)
            head = self._head(slot, self._versions.offset_fetch, node, current.handle)
            return OffsetFetch(*head, group_id, current.groups[group_id].evidence)

        return make

    # Small things.

    def _take(self, identity: Identity) -> None:
        """Use a producer id and epoch from now on."""
        current = self._transaction
        if current is not None and current.ends:
            current.renewed = True
        if identity != self._identity:
            self._sequences.clear()
            self._sweep = self._sweep.again()
        self._identity, self._usable = identity, True

    def _current(self, handle: int | None) -> OpenTransaction:
        current = self._transaction
        if handle is None and self.doom:
            raise TransactionAbortedError(self.doom, {})
        if current is None or current.handle != handle:
            raise TransactionAbortedError(f"transaction {handle} has ended", {})
        return current

    def _open(self, handle: int | None) -> OpenTransaction:
        current = self._current(handle)
        if current.phase is Phase.ABORTING:
            raise TransactionAbortedError(current.cause, {})
        if current.phase is not Phase.OPEN:
            raise TransactionAbortedError(f"transaction {handle} is being committed", {})
        return current

    def _of(self, request: Request) -> OpenTransaction | None:
        """The transaction that a request is for; None for those between two transactions."""
        current = self._transaction
        return current if current is not None and request.transaction == current.handle else None

    def _batch(self, request: Produce) -> Batch:
        current = self._of(request)
        assert current is not None
        batches = current.partitions[request.partition].batches
        return next(batch for batch in batches if batch.number == request.batch)

    def _tried(self, request: Request) -> None:
        slot = slot_of(request)
        self._attempts[slot] = self._attempts.get(slot, 0) + 1

    def _forget_coordinator(self, request: Request) -> None:
        if isinstance(request, _OF_COORDINATOR):
            self._coordinators.pop((TRANSACTION, self.transactional_id), None)
        elif isinstance(request, TxnOffsetCommit):
            self._coordinators.pop((GROUP, request.group.group_id), None)
        elif isinstance(request, OffsetFetch):
            self._coordinators.pop((GROUP, request.group_id), None)


#: What the transaction coordinator answers, one at a time.
_OF_COORDINATOR = (
    *(InitProducerId, DescribeTransactions),
    *(AddPartitionsToTxn, AddOffsetsToTxn, EndTxn),
)

#: A group that rebalances refuses offsets so. It may accept them with the member's next generation.
_BETWEEN_GENERATIONS = (
    Errors.ILLEGAL_GENERATION,
    Errors.REBALANCE_IN_PROGRESS,
    Errors.STALE_MEMBER_EPOCH,
)

#: About a transaction in doubt, one at a time.
_QUESTIONS = (Fetch, OffsetFetch)
