"""The same histories with consumers that catch up beside the live records (KIP-333).

Whatever is behind is a backlog. What must hold is what holds without: no more is lost, and no more
comes again. In order, every partition's records come in theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from unittest import mock

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from kafka.structs import TopicPartition
from model_application import Application
from model_log import Record
from test_consumer_skips_and_repeats_nothing import Consumers, commits_as_the_epoch_changes


class InOneThread:
    """The simulated world has one: what another would do is done at once."""

    def __init__(self, *, target: Any, args: tuple[Any, ...], **_: Any) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        self._run()

    def is_alive(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def _in_one_thread() -> Iterator[None]:
    name = "pyspark_kafka_rebalance.consumer.kafka_python.second_reader.threading.Thread"
    with mock.patch(name, InOneThread):
        yield


class InOrder(Consumers):
    options: ClassVar[dict[str, Any]] = {
        "parallel_rebalance": "ordered",
        "catch_up_threshold": 0,
    }


class LiveApplication(Application):
    """One that says of each record that it is finished, or of all at once."""

    def _take(self, partition: TopicPartition, offset: int, record: Record) -> None:
        if offset in self.of_a_gap:
            stint = self.stints[partition]
            self.on_delivery(stint, offset, record)
            stint.work[offset] = record
            stint.next_offset = max(stint.next_offset, offset + 1)
        else:
            super()._take(partition, offset, record)

    def poll(self, timeout_s: float) -> None:
        self.of_a_gap: set[int] = set()
        poll = self.consumer.poll_with_rebalance

        def poll_both(**arguments: Any) -> Any:
            result = poll(**arguments)
            self.caught_up = result.catch_up
            return result

        with mock.patch.object(self.consumer, "poll_with_rebalance", poll_both):
            super().poll(timeout_s)
        for partition, records in self.caught_up.items():
            if partition in self.stints:
                self.of_a_gap = {record.offset for record in records}
                for record in records:
                    self._take(partition, record.offset, int(record.value))

    def tell(self, partition: TopicPartition, how: str, finished: Mapping[int, Record]) -> None:
        stint = self.stints[partition]
        stint.unconfirmed |= finished
        # Without offsets it speaks of every partition.
        idle = not any(each.work for each in self.stints.values())
        if how in ("commit", "commit_async") and idle:
            self._commit(how, None, [(s, list(s.unconfirmed)) for s in self.stints.values()])
        else:
            self._processed(stint, finished)


class BesideLive(Consumers):
    options: ClassVar[dict[str, Any]] = {"parallel_rebalance": "live", "catch_up_threshold": 0}
    application: ClassVar[type[Application]] = LiveApplication
    keeps_metadata: ClassVar[bool] = True


@pytest.mark.parametrize("machine", [InOrder, BesideLive])
def test_an_asynchronous_commit_of_a_former_epoch_is_repeated_by_the_application(
    machine: type[Consumers],
) -> None:
    commits_as_the_epoch_changes(machine)


def settled(machine: type[Consumers]) -> Any:
    machine.TestCase.settings = settings(
        deadline=None,
        max_examples=histories(25),
        stateful_step_count=20,
        derandomize=ALWAYS_THE_SAME,
    )
    return machine.TestCase


TestInOrder = settled(InOrder)
TestBesideLive = settled(BesideLive)
