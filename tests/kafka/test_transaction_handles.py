"""Handles of transactions: whatever ends one, every call on it is refused from then on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from flaky_network import FlakyNetwork
from group_members import wait_until
from kafka import KafkaProducer
from kafka.errors import IllegalStateError
from kafka.protocol.producer import EndTxnRequest
from producer_groups import PATIENCE_S, MakeProducer, poll_until, producers_of, read_committed
from written import ENDS_SOON

from pyspark_kafka_rebalance import (
    AsyncProducerGroup,
    GroupTransaction,
    ProducerGroup,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.testing import LocalKafka

#: A ``send`` that is not let go waits for this long, which is longer than any test does.
MAX_BLOCK_MS = 600_000
#: With rows of 10 KB, a few fill it.
SMALL_BUFFER = 100_000
ROW = b"x" * 10_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafka]:
    with LocalKafka(broker_config=ENDS_SOON) as local:
        yield local


@pytest.fixture
def rows(cluster: LocalKafka, topic_name: str) -> str:
    cluster.create_topic(topic_name)
    return topic_name


@pytest.fixture
def producers(cluster: LocalKafka, group_id: str) -> Iterator[MakeProducer]:
    with producers_of(cluster, group_id, "classic", 25_000) as make:
        yield make


def calls_on(transaction: GroupTransaction, topic: str) -> list[Callable[[], object]]:
    return [
        lambda: transaction.send(topic, b"never", source_partition=0),
        lambda: transaction.send(topic, b"never", source_partition=0, future=True),
        lambda: transaction.send_batch(topic, pa.table({"value": [b"never"]}), source_partition=0),
        lambda: transaction.commit({0: "never"}),
        lambda: transaction.commit(),
        transaction.abort,
    ]


def assert_every_call_is_refused(transaction: GroupTransaction, topic: str) -> None:
    """On this thread, and on another one."""
    assert transaction.has_ended
    for call in calls_on(transaction, topic):
        told: list[BaseException | None] = []

        def elsewhere(call: Callable[[], object] = call, told: list[Any] = told) -> None:
            told.append(error_of(call))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(PATIENCE_S)
        assert [type(error) for error in told] == [TransactionAbortedError]
        with pytest.raises(TransactionAbortedError):
            call()
    assert transaction.has_ended


def error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def send_until_told(transaction: GroupTransaction, topic: str) -> None:
    """A broker's decision is known to the producer once the broker has refused something."""
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(TransactionAbortedError):  # noqa: PT012
        while True:
            transaction.send(topic, b"never", source_partition=0)
            assert time.monotonic() < deadline, "the transaction goes on"
            time.sleep(0.01)


# -- what ends a transaction ----------------------------------------------------------------------


def by_commit(group: ProducerGroup, transaction: GroupTransaction, _: str) -> None:
    transaction.commit({0: "1"})


def by_abort(group: ProducerGroup, transaction: GroupTransaction, _: str) -> None:
    assert transaction.abort() == {0: "0"}


def by_an_exception(group: ProducerGroup, transaction: GroupTransaction, _: str) -> None:
    with pytest.raises(KeyError), transaction:
        raise KeyError


def by_close(group: ProducerGroup, transaction: GroupTransaction, _: str) -> None:
    group.close()


def by_another_producer_of_its_name(
    group: ProducerGroup, transaction: GroupTransaction, topic: str
) -> None:
    other = KafkaProducer(
        bootstrap_servers=group._options.client["bootstrap_servers"],
        transactional_id=group.transactional_id,
    )
    other.init_transactions()
    other.close()
    send_until_told(transaction, topic)


def by_its_timeout(group: ProducerGroup, transaction: GroupTransaction, topic: str) -> None:
    row = transaction.send(topic, b"never", source_partition=0, future=True)
    assert row is not None
    row.result(PATIENCE_S)
    send_until_told(transaction, topic)


@pytest.mark.parametrize(
    ("end", "settings"),
    [
        (by_commit, {}),
        (by_abort, {}),
        (by_an_exception, {}),
        (by_close, {}),
        (by_another_producer_of_its_name, {}),
        (by_its_timeout, {"transaction_timeout_ms": 6_000}),
    ],
)
def test_a_handle_whose_transaction_has_ended_is_refused(
    cluster: LocalKafka,
    rows: str,
    producers: MakeProducer,
    end: Callable[[ProducerGroup, GroupTransaction, str], None],
    settings: dict[str, Any],
) -> None:
    group = producers(1, **settings)
    group.subscribe()
    group.commit_transaction("0")
    transaction = group.transaction()
    transaction.send(rows, b"first", source_partition=0)
    end(group, transaction, rows)
    assert_every_call_is_refused(transaction, rows)
    wanted = [b"first"] if end is by_commit else []
    if end is not by_close:
        with group.transaction() as following:
            following.send(rows, b"row", source_partition=0, restart_point="2")
        assert group.restart_points == {0: "2"}
        assert_every_call_is_refused(transaction, rows)
        wanted.append(b"row")
    assert read_committed(cluster, rows) == wanted


def test_a_handle_is_refused_whose_source_partition_went_to_another_member(
    cluster: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    first, second = producers(2, revoke_timeout_ms=1_000), producers(2)
    first.subscribe()
    transaction = first.transaction()
    for p in range(2):
        transaction.send(rows, b"never", source_partition=p)
    second.subscribe(timeout_ms=0)
    poll_until(lambda: transaction.has_ended, first, second)
    assert_every_call_is_refused(transaction, rows)
    poll_until(lambda: {*first.restart_points, *second.restart_points} == {0, 1}, first, second)
    for group in (first, second):
        with group.transaction() as following:
            for p in group.restart_points:
                following.send(rows, b"%d" % p, source_partition=p, restart_point="1")
    assert sorted(read_committed(cluster, rows)) == [b"0", b"1"]


# -- a send that waits ----------------------------------------------------------------------------


@contextlib.contextmanager
def sending_until_refused(
    group: ProducerGroup, transaction: GroupTransaction, topic: str
) -> Iterator[tuple[threading.Thread, list[BaseException | None]]]:
    """A thread that sends, and by now waits for room."""
    told: list[BaseException | None] = []

    def send() -> None:
        def all_of_them() -> None:
            while True:
                transaction.send(topic, ROW, source_partition=0)

        told.append(error_of(all_of_them))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    wait_until(lambda: has_no_room(group), "no room")
    yield thread, told


def has_no_room(group: ProducerGroup) -> bool:
    producer = group._transactions._writer._producer
    return producer is not None and not producer._delivery.has_room


def behind(network: FlakyNetwork, group: ProducerGroup) -> ProducerGroup:
    """Its producer alone."""
    group._options.producer["proxy_url"] = network.url
    return group


SMALL = {"buffer_memory": SMALL_BUFFER, "max_block_ms": MAX_BLOCK_MS}


@pytest.mark.parametrize("by", ["abort", "exception"])
def test_a_send_that_waits_for_room_while_its_transaction_is_aborted(
    cluster: LocalKafka, rows: str, producers: MakeProducer, network: FlakyNetwork, by: str
) -> None:
    """The abort waited behind it for max_block_ms."""
    group = behind(network, producers(1, **SMALL))
    group.subscribe()
    group.commit_transaction("0")
    transaction = group.transaction()
    transaction.send(rows, b"never", source_partition=0)
    network.stall()
    ended: list[object] = []

    def abort() -> None:
        ended.append(by_abort(group, transaction, rows))

    def leave() -> None:
        with contextlib.suppress(KeyError), transaction:
            raise KeyError
        ended.append(None)

    with sending_until_refused(group, transaction, rows) as (sender, told):
        ending = threading.Thread(target=abort if by == "abort" else leave)
        ending.start()
        sender.join(PATIENCE_S)
        assert [type(error) for error in told] == [TransactionAbortedError]
        assert "by the application" in str(told[0])
        network.mend()
        ending.join(PATIENCE_S)
    assert ended == [None]
    assert_every_call_is_refused(transaction, rows)
    with group.transaction() as following:
        following.send(rows, b"row", source_partition=0, restart_point="1")
    assert read_committed(cluster, rows) == [b"row"]


def test_a_send_that_waits_for_room_while_its_source_partition_is_lost(
    cluster: LocalKafka, rows: str, producers: MakeProducer, network: FlakyNetwork
) -> None:
    """It waited for max_block_ms, and raised KafkaTimeoutError then."""
    first = behind(network, producers(1, **SMALL, revoke_timeout_ms=1_000))
    second = producers(1)
    first.subscribe()
    transaction = first.transaction()
    transaction.send(rows, b"never", source_partition=0)
    network.stall()
    with sending_until_refused(first, transaction, rows) as (sender, told):
        member = first._membership.member
        assert member is not None
        member.leave_until_polled("said the test")
        sender.join(PATIENCE_S)
        assert [type(error) for error in told] == [TransactionAbortedError]
        assert "lost a source partition" in str(told[0])
        network.mend()
    assert_every_call_is_refused(transaction, rows)
    first.close()
    second.subscribe()
    with second.transaction() as following:
        following.send(rows, b"row", source_partition=0, restart_point="1")
    assert read_committed(cluster, rows) == [b"row"]


# -- calls that a signal interrupts ---------------------------------------------------------------


class InterruptedInTheTestError(Exception):
    pass


@contextlib.contextmanager
def interrupted_when(ready: Callable[[], object]) -> Iterator[None]:
    """As by Ctrl-C, or by the alarm of a watchdog: the handler of a signal raises."""

    def interrupt(*_: object) -> None:
        raise InterruptedInTheTestError

    def send_signal() -> None:
        ready()
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    other = threading.Thread(target=send_signal)
    other.start()
    try:
        with pytest.raises(InterruptedInTheTestError):
            yield
    finally:
        other.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_between_a_record_and_its_restart_point(
    cluster: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    """The record was committed with the restart point before it, and came twice."""
    group = producers(1)
    group.subscribe()
    group.send(rows, b"0", source_partition=0, restart_point="1")
    transaction = group._transactions._writer.transaction
    assert transaction is not None
    append = transaction.at_once[rows]

    def interrupted(*record: Any) -> bool:
        if append(*record):
            raise KeyboardInterrupt
        return False

    transaction.at_once[rows] = interrupted
    n = 1
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        while n < 10_000:
            group.send(rows, b"%d" % n, source_partition=0, restart_point=f"{n + 1}")
            n += 1
    with pytest.raises(TransactionAbortedError, match="interrupted"):
        group.commit_transaction()
    poll_until(lambda: group.restart_points == {0: None}, group)
    for n in range(3):
        group.send(rows, b"%d" % n, source_partition=0, restart_point=f"{n + 1}")
    group.commit_transaction()
    assert read_committed(cluster, rows) == [b"0", b"1", b"2"]


def test_close_ends_what_a_torn_producer_left_open(
    cluster: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    """A reader of what is committed would wait for it until the transaction's timeout."""
    group = producers(1)
    group.subscribe()
    sent = group.send(rows, b"0", source_partition=0, future=True)
    assert sent is not None
    sent.result(PATIENCE_S)
    link = group._transactions._writer._producer._link
    with link.lock:
        link.is_torn(KeyboardInterrupt())
    group.close()
    assert read_committed(cluster, rows) == []


@pytest.mark.parametrize("then", ["commit", "close", "handle"])
@pytest.mark.parametrize("arrow", [True, False])
def test_a_send_that_a_signal_interrupts(
    cluster: LocalKafka,
    rows: str,
    producers: MakeProducer,
    network: FlakyNetwork,
    then: str,
    arrow: bool,
) -> None:
    """A part of the rows was committed, with the restart point before them."""
    group = behind(network, producers(1, **SMALL, commit_records=1_000_000))
    group.subscribe()
    transaction = group.transaction() if then == "handle" else group
    transaction.send(rows, b"0", source_partition=0, restart_point="1")
    network.stall()
    with interrupted_when(lambda: wait_until(lambda: has_no_room(group), "no room")):
        if arrow:
            data = pa.table({"value": [ROW] * 100})
            transaction.send_batch(rows, data, source_partition=0, restart_point="101")
        else:
            while True:
                transaction.send(rows, ROW, source_partition=0)
    network.mend()
    if then == "handle":
        assert isinstance(transaction, GroupTransaction)
        with pytest.raises(TransactionAbortedError, match="interrupted"):
            transaction.commit({0: "101"})
        assert_every_call_is_refused(transaction, rows)
    elif then == "commit":
        with pytest.raises(TransactionAbortedError, match="interrupted"):
            group.commit_transaction({0: "101"})
    group.close()
    assert read_committed(cluster, rows) == []
    following = producers(1)
    assert following.subscribe() == {0: None}


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("with_handle", [True, False])
def test_a_commit_that_a_signal_interrupts(
    cluster: LocalKafka,
    rows: str,
    producers: MakeProducer,
    network: FlakyNetwork,
    with_handle: bool,
    answer: bool,
) -> None:
    """Its rows came twice: the restart points said that it was aborted."""

    group = behind(network, producers(1))
    group.subscribe()
    group.commit_transaction("0")
    stopped = network.stop_at(EndTxnRequest, answer=answer)
    with interrupted_when(lambda: stopped.wait(PATIENCE_S)):
        if with_handle:
            with group.transaction() as transaction:
                transaction.send(rows, b"row", source_partition=0, restart_point="1")
        else:
            group.send(rows, b"row", source_partition=0)
            group.commit_transaction({0: "1"})
    network.mend()
    if with_handle:
        assert_every_call_is_refused(transaction, rows)
    else:
        with pytest.raises(TransactionAbortedError, match="may have been committed"):
            group.poll()
    poll_until(lambda: group.restart_points == {0: "1"}, group)
    group.send(rows, b"next", source_partition=0)
    group.commit_transaction({0: "2"})
    assert read_committed(cluster, rows) == [b"row", b"next"]


# -- asyncio --------------------------------------------------------------------------------------


MakeAsync = Callable[..., AsyncProducerGroup]


@pytest.fixture
def make(cluster: LocalKafka, group_id: str) -> MakeAsync:
    def made(**config: Any) -> AsyncProducerGroup:
        settings = {"session_timeout_ms": 25_000, "heartbeat_interval_ms": 500, **config}
        servers = cluster.bootstrap_servers
        return AsyncProducerGroup(
            group_id, 1, bootstrap_servers=servers, reconnect_backoff_max_ms=200, **settings
        )

    return made


@pytest.mark.parametrize("by", ["commit", "end of the block"])
def test_a_commit_whose_task_is_cancelled_goes_on(
    cluster: LocalKafka, rows: str, make: MakeAsync, network: FlakyNetwork, by: str
) -> None:
    async def produce() -> None:
        async with make() as group:
            behind(network, group._group)
            await group.subscribe()
            await group.commit_transaction("0")
            first = group.transaction()

            async def transact() -> None:
                async with first:
                    await first.send(rows, b"row", source_partition=0, restart_point="1")
                    if by == "commit":
                        await first.commit()

            stopped = network.stop_at(EndTxnRequest, answer=True)
            committing = asyncio.create_task(transact())
            assert await asyncio.to_thread(stopped.wait, PATIENCE_S)
            committing.cancel()
            late = asyncio.create_task(first.send(rows, b"never", source_partition=0))
            await asyncio.sleep(0)
            network.mend()
            with pytest.raises(asyncio.CancelledError):
                await committing
            async with group.transaction() as second:
                assert group.restart_points == {0: "1"}, "as soon as the next one has begun"
                await second.send(rows, b"next", source_partition=0, restart_point="2")
            with pytest.raises(TransactionAbortedError):
                await late
            assert first.has_ended
            for call in (
                first.send(rows, b"never", source_partition=0),
                first.send_batch(rows, pa.table({"value": [b"never"]}), source_partition=0),
                first.commit({0: "never"}),
                first.abort(),
            ):
                with pytest.raises(TransactionAbortedError):
                    await call

    asyncio.run(produce())
    assert read_committed(cluster, rows) == [b"row", b"next"]


@pytest.mark.parametrize("by", ["abort", "exception"])
def test_a_task_whose_send_waits_for_room_while_its_transaction_is_aborted(
    cluster: LocalKafka, rows: str, make: MakeAsync, network: FlakyNetwork, by: str
) -> None:
    async def produce() -> None:
        async with make(**SMALL) as group:
            behind(network, group._group)
            await group.subscribe()
            await group.commit_transaction("0")
            told: list[BaseException] = []

            async def send(transaction: Any) -> None:
                try:
                    while True:
                        await transaction.send(rows, ROW, source_partition=0)
                        await asyncio.sleep(0)
                except TransactionAbortedError as error:
                    told.append(error)

            with contextlib.suppress(KeyError):
                async with group.transaction() as transaction:
                    await transaction.send(rows, b"never", source_partition=0)
                    network.stall()
                    sender = asyncio.create_task(send(transaction))
                    while group._left_to_thread == group._done_by_thread:
                        await asyncio.sleep(0.01)
                    mending = asyncio.create_task(mend_after(sender))
                    if by == "exception":
                        raise KeyError
                    assert await transaction.abort() == {0: "0"}
            await mending
            assert "by the application" in str(told[0])
            with pytest.raises(TransactionAbortedError):
                await transaction.send(rows, b"never", source_partition=0)
            async with group.transaction() as second:
                await second.send(rows, b"row", source_partition=0, restart_point="1")

    async def mend_after(sender: asyncio.Task[None]) -> None:
        await asyncio.wait_for(sender, PATIENCE_S)
        network.mend()

    asyncio.run(produce())
    assert read_committed(cluster, rows) == [b"row"]


def test_a_handle_after_its_group_is_closed_and_before_it_has_begun(
    cluster: LocalKafka, rows: str, make: MakeAsync
) -> None:
    async def produce() -> None:
        group = make()
        await group.subscribe()
        transaction = group.transaction()
        assert not transaction.has_ended
        with pytest.raises(IllegalStateError, match="async with"):
            await transaction.send(rows, b"never", source_partition=0)
        await transaction.__aenter__()
        with pytest.raises(IllegalStateError, match="has begun already"):
            await transaction.__aenter__()
        await transaction.send(rows, b"never", source_partition=0)
        await group.close()
        assert transaction.has_ended
        for call in (
            transaction.send(rows, b"never", source_partition=0),
            transaction.send_batch(rows, pa.table({"value": [b"never"]}), source_partition=0),
            transaction.commit({0: "never"}),
            transaction.abort(),
            transaction.__aexit__(None, None, None),
        ):
            with pytest.raises(TransactionAbortedError, match="closed"):
                await call
        for refused in (
            group.send(rows, b"never", source_partition=0),
            group.commit_transaction("never"),
            group.poll(),
            group.alive(),
            group.transaction().__aenter__(),
        ):
            with pytest.raises(IllegalStateError, match="closed"):
                await refused

    asyncio.run(produce())
    assert read_committed(cluster, rows) == []
