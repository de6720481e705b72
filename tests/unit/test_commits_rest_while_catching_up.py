"""CommitLoop while partitions catch up (KIP-333): it rests between background commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.commits.commit_by_hand import EnteredCommit
from pyspark_kafka_rebalance.consumer.commits.commit_loop import _REST_S, CommitLoop
from pyspark_kafka_rebalance.consumer.member_record import Member

P = TopicPartition("t", 0)


class Alarm:
    """One whose time is over when the test says so."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.notified = 0
        self.waits_s: list[float] = []

    async def __call__(self, timeout_s: float) -> None:
        self.waits_s.append(timeout_s)
        await self.rung.wait()
        self.rung.clear()

    def notify(self) -> None:
        self.notified += 1
        self.rung.set()

    async def time_is_over(self) -> None:
        self.rung.set()
        await settled()


async def settled() -> None:
    """The loop has done what there is to do, and waits again."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def running(catches_up: Callable[[], bool]) -> Iterator[tuple[CommitLoop, Alarm, list[int]]]:
    alarm, sent = Alarm(), []

    async def commit(member: Any, offsets: dict[TopicPartition, Any]) -> dict[Any, Any]:
        sent.append(offsets[P].offset)
        return dict.fromkeys(offsets, NoError)

    io: Any = SimpleNamespace(
        loop=SimpleNamespace(alarm=lambda: alarm), coordinator_unknown=lambda: False
    )
    lane: Any = SimpleNamespace(commit=commit)
    loop = CommitLoop(
        io,
        lane,
        1.0,
        member=lambda: Member(1, "m"),
        on_accepted=lambda _: None,
        on_verdict=lambda *_: None,
        clock=time.monotonic,
        catches_up=catches_up,
    )
    task = asyncio.ensure_future(loop.run(lambda: True))
    try:
        yield loop, alarm, sent
    finally:
        task.cancel()


def test_what_comes_meanwhile_waits_and_wakes_nobody():
    async def commits() -> None:
        with running(lambda: True) as (loop, alarm, sent):
            await settled()
            loop.add({P: 1})
            await settled()
            assert (sent, alarm.waits_s[-1]) == ([1], _REST_S)
            notified = alarm.notified
            loop.add({P: 2})
            loop.add({P: 3})
            loop.tell_gaps({P: 3})
            await settled()
            assert (sent, alarm.notified) == ([1], notified)
            await alarm.time_is_over()
            assert sent == [1, 3]

    asyncio.run(commits())


def test_a_commit_by_hand_waits_for_no_rest():
    async def commits() -> None:
        with running(lambda: True) as (loop, _, sent):
            await settled()
            loop.add({P: 1})
            await settled()
            by_hand = EnteredCommit({P: OffsetAndMetadata(5, "", -1)}, True, lambda _: None)
            loop.enter(by_hand)
            await settled()
            assert sent == [1, 5]
            assert by_hand.future.succeeded()

    asyncio.run(commits())


def test_when_nothing_catches_up_each_is_sent_at_once():
    async def commits() -> None:
        with running(lambda: False) as (loop, _, sent):
            await settled()
            for offset in (1, 2, 3):
                loop.add({P: offset})
                await settled()
            assert sent == [1, 2, 3]

    asyncio.run(commits())
