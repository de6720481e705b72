"""AsyncDeferredRevokeConsumer on a real broker: nothing blocks, and nothing cancelled is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from event_loop import PATIENCE_S, in_an_event_loop
from group_members import lose
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.errors import IllegalStateError
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import (
    AsyncDeferredRevokeConsumer,
    OptionError,
    PartitionsLostError,
    PollResult,
    RecordDeserializationError,
)
from pyspark_kafka_rebalance.testing import LocalKafka

#: Longer than the patience: a poll that takes it did not end early.
FOR_EVER_MS = 600_000.0

Make = Callable[..., AsyncDeferredRevokeConsumer]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(kafka: LocalKafka, group_id: str) -> Make:
    """A member of the test's group, not started."""
    kafka.configure_group(group_id, {"consumer.heartbeat.interval.ms": 500})

    def make(*topics: str, **config: Any) -> AsyncDeferredRevokeConsumer:
        settings = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "group_id": group_id,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 500,
            "fetch_max_wait_ms": 100,
            **config,
        }
        return AsyncDeferredRevokeConsumer(*topics, **settings)

    return make


@pytest.fixture
def topic(kafka: LocalKafka, topic_name: str) -> TopicPartition:
    """The only partition of a new topic."""
    kafka.create_topic(topic_name)
    return TopicPartition(topic_name, 0)


async def poll_until(
    done: Callable[[], bool], *members: AsyncDeferredRevokeConsumer, hold: bool = False
) -> list[PollResult]:
    """Poll the members at once until ``done``; ``hold`` delays every revoke. The poll results."""
    results = []
    while not done():
        for member in members:
            result = await member.poll_with_rebalance(timeout_ms=20)
            results.append(result)
            if hold:
                assert await member.delay_revoke(result.to_be_revoked)
    return results


def owns(member: AsyncDeferredRevokeConsumer, count: int) -> Callable[[], bool]:
    return lambda: len(member.assignment()) == count and member.is_stable


async def poll_for_records(member: AsyncDeferredRevokeConsumer) -> dict[TopicPartition, list[Any]]:
    while not (records := await member.poll(timeout_ms=1_000)):
        pass
    return records


def values(records: dict[TopicPartition, list[Any]]) -> list[bytes]:
    return [record.value for found in records.values() for record in found]


class HeldPoll:
    """Holds a poll in the consumer's thread, when it has a result, until it is let go."""

    def __init__(
        self,
        member: AsyncDeferredRevokeConsumer,
        monkeypatch: pytest.MonkeyPatch,
        when: Callable[[PollResult], object] = lambda result: result.records,
    ) -> None:
        assert member._thread.consumer is not None
        poll, loop = member._thread.consumer.poll_with_rebalance, asyncio.get_running_loop()
        self.has_result, self._let_go = asyncio.Event(), threading.Event()

        def held(*arguments: Any) -> PollResult:
            result = poll(*arguments)
            if when(result):
                loop.call_soon_threadsafe(self.has_result.set)
                assert self._let_go.wait(PATIENCE_S)
            return result

        monkeypatch.setattr(member._thread.consumer, "poll_with_rebalance", held)

    def let_go(self) -> None:
        self._let_go.set()


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_an_event_loop
async def test_a_revoke_is_delayed_and_completed_later(kafka, topic_name, protocol, make):
    kafka.create_topic(topic_name, partitions=4)
    first, second = (make(topic_name, group_protocol=protocol) for _ in range(2))
    async with first, second:
        await poll_until(owns(first, 4), first)
        asked: frozenset[TopicPartition] = frozenset()
        while not asked:
            await second.poll(timeout_ms=20)
            asked = (await first.poll_with_rebalance(timeout_ms=20)).to_be_revoked
        assert asked == first.get_to_be_revoked_partitions()
        assert await first.delay_revoke(asked)
        assert first.get_to_be_revoked_partitions() == frozenset()
        for _ in range(10):
            assert (await first.poll_with_rebalance(timeout_ms=20)).to_be_revoked == asked
            assert await first.delay_revoke(asked)
            assert not (await second.poll_with_rebalance(timeout_ms=20)).assigned
        await poll_until(owns(second, 2), first, second)
        assert second.assignment() == asked
        assert not await first.delay_revoke(asked)
        with pytest.raises(PartitionsLostError):
            first.commit_processed(dict.fromkeys(asked, 1))


@in_an_event_loop
async def test_every_record_once_while_members_of_one_loop_join_and_leave(
    kafka, topic_name, protocol, make
):
    kafka.create_topic(topic_name, partitions=4)
    records = 1_200
    ledger: Counter[tuple[int, int]] = Counter()
    changed = asyncio.Condition()

    async def work(member: AsyncDeferredRevokeConsumer) -> None:
        async with member:
            async for record in member:
                await asyncio.sleep(0)  # others run
                ledger[record.partition, record.offset] += 1
                partition = TopicPartition(record.topic, record.partition)
                member.commit_processed({partition: record.offset + 1})
                async with changed:
                    changed.notify_all()

    async def produce_third() -> None:
        for partition in range(4):
            part = [b"x"] * (records // 12)
            await asyncio.to_thread(kafka.produce, topic_name, part, partition=partition)

    async def processed(count: int) -> None:
        async with changed:
            await changed.wait_for(lambda: len(ledger) >= count)

    first, second = (
        make(topic_name, group_protocol=protocol, max_poll_records=20) for _ in range(2)
    )
    tasks = [asyncio.create_task(work(first))]
    await produce_third()
    await processed(records // 6)
    tasks.append(asyncio.create_task(work(second)))  # joins while the first is at work
    await produce_third()
    while second._thread.consumer is None or not second.assignment():
        await asyncio.sleep(0.01)
    await second.close()  # its iteration ends
    await tasks[1]
    await produce_third()
    await processed(records)
    await first.close()
    await tasks[0]
    assert len(ledger) == records, "lost"
    assert set(ledger.values()) == {1}, "duplicated"


@in_an_event_loop
async def test_the_loop_goes_on_while_a_poll_waits(kafka, topic, make):
    """The records that end the poll are produced by the loop that would have been blocked."""
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.sleep(0)
        await asyncio.to_thread(kafka.produce, topic.topic, [b"x"])
        assert values(await polling) == [b"x"]


@in_an_event_loop
async def test_commits_and_questions_do_not_wait_for_a_poll(kafka, topic, make):
    kafka.produce(topic.topic, [b"x"] * 5)
    async with make(topic.topic) as member:
        await poll_until(
            lambda: topic in member.assignment() and member.current_lag(topic) == 0, member
        )
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.sleep(0)
        member.commit_processed({topic: 5})
        while member.acknowledged(topic) != 5:
            await asyncio.sleep(0.01)
        assert await member.drain(timeout_ms=5_000)
        assert member.assignment() == {topic}
        assert member.get_to_be_revoked_partitions() == frozenset()
        assert member.get_lost_partitions() == frozenset()
        assert member.current_lag(topic) == 0
        assert member.generation > 0
        assert not polling.done()
        member.wakeup()
        assert await polling == {}


@in_an_event_loop
async def test_what_changes_something_takes_its_turn_and_ends_the_poll(
    kafka, topic, make, monkeypatch
):
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        consumer, order = member._thread.consumer, []

        def noted(name: str) -> None:
            call = getattr(consumer, name)

            def run(*arguments: Any) -> Any:
                order.append(f"{name} begins")
                answer = call(*arguments)
                order.append(f"{name} ends")
                return answer

            monkeypatch.setattr(consumer, name, run)

        noted("poll_with_rebalance")
        noted("delay_revoke")
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        while not order:
            await asyncio.sleep(0)
        assert await member.delay_revoke([])
        assert await polling == {}
        assert order == [
            "poll_with_rebalance begins",
            "poll_with_rebalance ends",
            "delay_revoke begins",
            "delay_revoke ends",
        ]
        # And it is over with that: the next poll waits as it should.
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.to_thread(kafka.produce, topic.topic, [b"x"])
        assert values(await polling) == [b"x"]


@in_an_event_loop
async def test_the_next_poll_returns_what_a_cancelled_one_brought(kafka, topic, make, monkeypatch):
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        held = HeldPoll(member, monkeypatch)
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.to_thread(kafka.produce, topic.topic, [b"a", b"b"])
        await held.has_result.wait()
        await cancelled(polling)
        again = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.sleep(0)
        await cancelled(again)  # also that one
        held.let_go()
        assert values(await member.poll()) == [b"a", b"b"]
        # The polls were cancelled when there was nothing left to end: the next one must not be.
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        assert await asyncio.wait([polling], timeout=0.5) == (set(), {polling})
        await asyncio.to_thread(kafka.produce, topic.topic, [b"c"])
        assert values(await polling) == [b"c"]


@in_an_event_loop
async def test_a_cancelled_poll_ends_and_the_next_but_one_waits_for_its_own_time(
    kafka, topic, make
):
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        for number in range(3):
            polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
            await asyncio.sleep(0.1 * number)
            await cancelled(polling)
            assert await member.poll(timeout_ms=FOR_EVER_MS) == {}, "the cancelled one's"
            member.wakeup()  # there is no poll that it could end
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.to_thread(kafka.produce, topic.topic, [b"x"])
        assert values(await polling) == [b"x"], "ended by a wakeup of the poll before"


@in_an_event_loop
async def test_a_revoke_that_a_cancelled_poll_learned_of_can_still_be_delayed(
    kafka, topic_name, protocol, make, monkeypatch
):
    kafka.create_topic(topic_name, partitions=2)
    first, second = (make(topic_name, group_protocol=protocol) for _ in range(2))
    async with first, second:
        await poll_until(owns(first, 2), first)
        held = HeldPoll(first, monkeypatch, when=lambda result: result.to_be_revoked)
        polling = asyncio.create_task(first.poll(timeout_ms=FOR_EVER_MS))
        joining = asyncio.create_task(poll_until(lambda: False, second))
        await held.has_result.wait()
        await cancelled(polling)
        held.let_go()
        asked = first.get_to_be_revoked_partitions()
        result = await first.poll_with_rebalance()
        assert result.to_be_revoked == asked == first.get_to_be_revoked_partitions()
        assert asked <= first.assignment()
        assert await first.delay_revoke(asked)
        assert (await first.poll_with_rebalance()).to_be_revoked == asked
        await cancelled(joining)


@in_an_event_loop
async def test_tasks_that_poll_at_once_share_the_records(kafka, topic, make):
    async with make(topic.topic, max_poll_records=1) as member:
        await poll_until(owns(member, 1), member)
        polls = [asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS)) for _ in range(3)]
        await asyncio.to_thread(kafka.produce, topic.topic, [b"a", b"b", b"c"])
        assert [values(await poll) for poll in polls] == [[b"a"], [b"b"], [b"c"]]


@in_an_event_loop
async def test_a_failure_is_raised_where_it_is_awaited(kafka, topic, make):
    class Picky(Deserializer):
        def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
            if data == b"bad":
                raise ValueError("not ours")
            return data

    async with make(topic.topic, value_deserializer=Picky()) as member:
        await poll_until(owns(member, 1), member)
        kafka.produce(topic.topic, [b"bad", b"good"])
        with pytest.raises(RecordDeserializationError, match=r"at offset 0.*not ours"):
            await member.poll(timeout_ms=FOR_EVER_MS)
        await member.seek(topic, 1)
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"good"]


@in_an_event_loop
async def test_the_failure_of_a_cancelled_poll_is_raised_by_the_next(topic, make, monkeypatch):
    async with make(topic.topic) as member:
        began, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def fail(*_: Any) -> PollResult:
            loop.call_soon_threadsafe(began.set)
            assert go_on.wait(PATIENCE_S)
            raise ValueError("said the test")

        monkeypatch.setattr(member._thread.consumer, "poll_with_rebalance", fail)
        polling = asyncio.create_task(member.poll())
        await began.wait()
        await cancelled(polling)
        go_on.set()
        with pytest.raises(ValueError, match="said the test"):
            await member.poll()
        monkeypatch.undo()
        assert await member.poll() == {}


@in_an_event_loop
async def test_the_failure_of_a_cancelled_poll_is_not_forgotten_on_close(
    topic, make, monkeypatch, caplog
):
    async with make(topic.topic) as member:

        def fail(*_: Any) -> PollResult:
            raise ValueError("said the test")

        monkeypatch.setattr(member._thread.consumer, "poll_with_rebalance", fail)
        polling = asyncio.create_task(member.poll())
        await asyncio.sleep(0)
        await cancelled(polling)
    assert "said the test" in caplog.text


@in_an_event_loop
async def test_close_ends_a_poll_and_an_iteration(topic, make):
    member = make(topic.topic)
    await member.start()
    await poll_until(owns(member, 1), member)
    polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
    await asyncio.sleep(0)
    await asyncio.gather(member.close(), member.close())
    assert await polling == {}
    assert [record async for record in member] == []
    await member.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await member.poll()
    with pytest.raises(IllegalStateError, match="closed"):
        member.commit_processed({})
    with pytest.raises(IllegalStateError, match="already started"):
        await member.start()


@in_an_event_loop
async def test_subscribe_and_close_end_a_poll_of_what_is_not_subscribed(topic, make):
    """They waited for it, however long it took."""
    async with make() as member:
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.sleep(0)
        await member.subscribe([topic.topic])
        assert await polling == {}
        await member.unsubscribe()
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.sleep(0)
    assert await polling == {}


@in_an_event_loop
async def test_close_drains_the_commits(kafka, topic, make):
    kafka.produce(topic.topic, [b"x"] * 5)
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        member.commit_processed({topic: 3})
    async with make(topic.topic) as member:
        assert await member.committed_offsets([topic], timeout_ms=10_000) == {topic: 3}


@in_an_event_loop
async def test_what_cannot_start_says_why_and_leaves_nothing(make):
    member = make("orders", enable_auto_commit=True)
    with pytest.raises(IllegalStateError, match="not started"):
        member.assignment()
    with pytest.raises(OptionError, match="enable_auto_commit"):
        await member.start()
    await member.close()
    await make("orders").close()  # never started


@in_an_event_loop
async def test_a_cancelled_start_closes_what_it_opened(topic, make):
    member = make(topic.topic)
    starting = asyncio.create_task(member.start())
    await asyncio.sleep(0)
    await cancelled(starting)
    await member.close()
    assert member._thread.consumer is None or member._thread.consumer._closed


@in_an_event_loop
async def test_a_poll_after_a_broken_off_iteration_returns_the_rest(kafka, topic, make):
    kafka.produce(topic.topic, [b"a", b"b", b"c"])
    async with make(topic.topic) as member:
        async for record in member:
            assert record.value == b"a"
            break
        assert values(await member.poll()) == [b"b", b"c"]
        kafka.produce(topic.topic, [b"d"])
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"d"]


@in_an_event_loop
async def test_after_a_seek_nothing_from_before_it_is_returned(kafka, topic, make, monkeypatch):
    kafka.produce(topic.topic, [b"a", b"b", b"c"])
    async with make(topic.topic) as member:
        async for record in member:
            assert record.value == b"a"
            break
        await member.seek(topic, 2)
        async for record in member:  # what the first iteration left is obsolete
            assert record.value == b"c"
            break
        await member.seek_to_beginning(topic)
        held = HeldPoll(member, monkeypatch)
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await held.has_result.wait()
        await cancelled(polling)
        seeking = asyncio.create_task(member.seek(topic, 1))
        await asyncio.sleep(0)
        held.let_go()
        await seeking
        result = await member.poll_with_rebalance()  # the cancelled poll's
        assert result.records == result.metadata == {}
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"b", b"c"]
        assert await member.position(topic) == 3


@in_an_event_loop
async def test_what_a_seek_skipped_holds_nothing_up(kafka, topic, make):
    kafka.produce(topic.topic, [b"a", b"b", b"c", b"d", b"e"])
    async with make(topic.topic) as member:
        async for record in member:
            member.processed(topic, record.offset)
            break
        assert member.unprocessed() == {topic}, "polled, but not returned"
        await member.seek(topic, 3)
        async for record in member:
            assert record.value == b"d"
            break
        member.processed(topic, 3)
        await member.seek(topic, 2)  # e, which nobody saw, is polled again
        polled = values(await member.poll())  # a poll that does not wait: none, or all of them
        assert member.unprocessed() == {topic}
        assert await member.drain(timeout_ms=10_000)
        assert member.acknowledged(topic) == 4, "past what a seek skipped, up to what it did not"
        assert (polled or values(await member.poll(timeout_ms=FOR_EVER_MS))) == [b"c", b"d", b"e"]
        member.processed(topic, 2, 3, 4)
        assert member.unprocessed() == frozenset()


@in_an_event_loop
async def test_a_loss_of_what_a_seek_skipped_does_not_drop_the_records_of_others(
    kafka, topic_name, make
):
    """The poll raised PartitionsLostError, and what it had taken out of the buffer was gone."""
    kafka.create_topic(topic_name, partitions=2)
    sought, other = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    async with make(topic_name) as member:
        await poll_until(owns(member, 2), member)
        for partition in (sought, other):
            kafka.produce(topic_name, [b"a", b"b", b"c"], partition=partition.partition)
        async for _ in member:
            rest = {(record.partition, record.offset) for record in member._records}
            if {partition for partition, _ in rest} == {0, 1}:
                break
            for partition in (sought, other):  # they did not come in one poll
                await member.seek(partition, 0)
        await member.seek(sought, 3)
        lose(member._thread.consumer, keep_member_id=True)
        records = await member.poll()
        assert {(1, r.offset) for r in records[other]} == {one for one in rest if one[0] == 1}


@in_an_event_loop
async def test_what_a_cancelled_poll_brought_is_unprocessed(kafka, topic, make, monkeypatch):
    """Its records are still to come: a revoke must be delayed for them."""
    async with make(topic.topic) as member:
        await poll_until(owns(member, 1), member)
        held = HeldPoll(member, monkeypatch)
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.to_thread(kafka.produce, topic.topic, [b"x"])
        await held.has_result.wait()
        await cancelled(polling)
        assert member.unprocessed() == {topic}
        held.let_go()
        assert values(await member.poll()) == [b"x"]
        member.processed(topic, 0)
        assert member.unprocessed() == frozenset()
        assert await member.drain(timeout_ms=10_000)
        assert member.acknowledged(topic) == 1


@in_an_event_loop
async def test_the_rest_of_the_calls_reach_the_consumer(kafka, topic, make):
    kafka.produce(topic.topic, [b"a", b"b"])
    async with make() as member:
        await member.subscribe([topic.topic])
        await poll_until(owns(member, 1), member)
        await member.pause(topic)
        await member.seek_to_end(topic)
        assert await member.position(topic) == 2
        assert await member.beginning_offsets([topic]) == {topic: 0}
        assert await member.end_offsets([topic]) == {topic: 2}
        await member.seek(topic, 1)
        assert await member.poll(timeout_ms=300) == {}
        await member.resume(topic)
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"b"]
        await member.commit()
        assert await member.committed(topic) == 2
        await member.commit({topic: OffsetAndMetadata(1, "mine", -1)})
        found = await member.committed(topic, metadata=True)
        assert (found.offset, found.metadata) == (1, "mine")
        assert member.subscription() == {topic.topic}
        assert topic.topic in await member.topics()
        assert await member.partitions_for_topic(topic.topic) == {0}
        assert member.highwater(topic) == 2
        assert (await member.offsets_for_times({topic: 0}))[topic].offset == 0
        assert member.group_metadata().member_id
        consumer = member._thread.consumer
        assert member.bootstrap_connected() == consumer.bootstrap_connected()
        assert member.metrics()
        await member.unsubscribe()
        assert member.assignment() == set()


@in_an_event_loop
async def test_what_is_paused_can_be_resumed(kafka, topic, make):
    async with make() as member:
        await member.assign([topic])
        await member.pause(topic)
        kafka.produce(topic.topic, [b"a"])
        assert member.paused() == {topic}
        assert await member.poll(timeout_ms=200) == {}
        await member.resume(*member.paused())
        assert member.paused() == set()
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"a"]
        await member.commit()
        assert await member.committed(topic) == 1


@in_an_event_loop
async def test_a_commit_is_of_what_was_returned(kafka, topic, make, monkeypatch):
    """Not of what a cancelled poll has brought, nor of what an iteration has not returned."""
    kafka.produce(topic.topic, [b"a", b"b", b"c"])
    async with make(topic.topic) as member:
        async for record in member:
            assert record.value == b"a"
            break
        await member.commit()
        assert await member.committed(topic) == await member.position(topic) == 1
        assert values(await member.poll()) == [b"b", b"c"]
        await member.commit()
        assert await member.committed(topic) == 3
        held = HeldPoll(member, monkeypatch)
        polling = asyncio.create_task(member.poll(timeout_ms=FOR_EVER_MS))
        await asyncio.to_thread(kafka.produce, topic.topic, [b"d"])
        await held.has_result.wait()
        await cancelled(polling)
        held.let_go()
        await member.commit()
        assert await member.committed(topic) == await member.position(topic) == 3
        assert values(await member.poll()) == [b"d"]
        await member.commit()
        assert await member.committed(topic) == await member.position(topic) == 4


@in_an_event_loop
async def test_after_a_seek_a_poll_waits_for_what_is_there(kafka, topic, make):
    """It returned at once with nothing if an iteration had records left."""
    kafka.produce(topic.topic, [b"a", b"b", b"c"])
    async with make(topic.topic) as member:
        async for record in member:
            assert record.value == b"a"
            break
        await member.seek(topic, 1)
        assert values(await member.poll(timeout_ms=FOR_EVER_MS)) == [b"b", b"c"]


class Listener(AsyncConsumerRebalanceListener):
    """Awaits what only the application's loop can do, and calls of the consumer."""

    def __init__(self, member: AsyncDeferredRevokeConsumer) -> None:
        self.member = member
        self.calls: list[str] = []

    async def on_partitions_assigned(self, assigned: Any) -> None:
        await asyncio.sleep(0.01)
        for partition in assigned:
            await self.member.seek(partition, 1)
        self.calls.append("assigned")

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await asyncio.sleep(0.01)
        await self.member.commit(dict.fromkeys(revoked, 2))
        self.calls.append("revoked")


@in_an_event_loop
async def test_a_listeners_coroutines_run_on_the_applications_loop(kafka, topic, make):
    kafka.produce(topic.topic, [b"a", b"b"])
    async with make() as member:
        listener = Listener(member)
        await member.subscribe([topic.topic], listener=listener)
        results = await poll_until(owns(member, 1), member)
        assert listener.calls == ["assigned"]
        # The poll after which the group is stable may have brought the record already.
        found = [value for result in results for value in values(result.records)]
        assert (found or values(await poll_for_records(member))) == [b"b"]
    assert listener.calls == ["assigned", "revoked"], "close revokes"
    async with make() as other:
        assert await other.committed(topic) == 2
