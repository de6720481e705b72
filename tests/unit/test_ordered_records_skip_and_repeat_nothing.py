"""The same histories with applications that poll in the order of timestamps (KIP-695).

What polls have buffered for the merge is nobody's but the group's: whoever is given a partition
next delivers it, after a revoke, a loss, a kill, and after a seek. With a backlog that is caught up
(KIP-333) no less: "ordered" its records take their place in the merge, "live" they come beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from kafka.structs import TopicPartition
from model_application import SESSION_S, Application
from test_catch_up_skips_and_repeats_nothing import InOneThread, LiveApplication
from test_consumer_skips_and_repeats_nothing import (
    BOTH,
    NAMES,
    Consumers,
    commits_as_the_epoch_changes,
    nothing_of_a_long_log_is_left,
)

from pyspark_kafka_rebalance import TimestampOrderedRecords
from pyspark_kafka_rebalance.consumer.poll_result import PollResult


@pytest.fixture(autouse=True)
def _in_one_thread() -> Iterator[None]:
    name = "pyspark_kafka_rebalance.consumer.kafka_python.second_reader.threading.Thread"
    with mock.patch(name, InOneThread):
        yield


class Merging(Application):
    """Every poll goes through the merge, which buffers little."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        max_task_idle_ms = options.pop("max_task_idle_ms", 0)
        super().__init__(*arguments, **options)
        ordered = TimestampOrderedRecords(
            self.consumer, max_task_idle_ms, buffered_records_per_partition=3
        )

        def poll(timeout_ms: float) -> PollResult:
            result = ordered.poll(timeout_ms, max_records=3)
            records: dict[TopicPartition, list[Any]] = defaultdict(list)
            for record in result.records:
                records[TopicPartition(record.topic, record.partition)].append(record)
            told = (result.to_be_revoked, result.lost, result.assigned, result.revoked)
            return PollResult(records, *told, {}, result.catch_up)

        self.consumer.poll_with_rebalance = poll  # type: ignore[method-assign, assignment]


class MergingBesideGaps(Merging, LiveApplication):
    """With "live"."""


class Merged(Consumers):
    application: ClassVar[type[Application]] = Merging


class MergedWithoutWaiting(Merged):
    options: ClassVar[dict[str, Any]] = {"max_task_idle_ms": -1}


class MergedBacklogs(Merged):
    @rule(number=st.integers(5, 25), polls=st.integers(0, 8), share=st.floats(0, 1))
    def all_are_killed_and_leave_a_backlog(self, number: int, polls: int, share: float) -> None:
        for name in NAMES:
            self.is_killed(name)
        self.world.sleep(1.1 * SESSION_S)
        for partition in BOTH:
            if partition not in self.shortened:
                self.logs[partition].produce(number)
        self.begins(0)
        for _ in range(polls):
            self.polls(0, 0.3)
            application = self.applications[0]
            assert application is not None
            for stint in list(application.stints.values()):
                begun = sorted(stint.work)
                self.finish(application, stint, "processed", begun[: int(len(begun) * share)])


class MergedInOrder(MergedBacklogs):
    options: ClassVar[dict[str, Any]] = {
        "parallel_rebalance": "ordered",
        "catch_up_threshold": 0,
    }


class MergedBesideLive(MergedBacklogs):
    options: ClassVar[dict[str, Any]] = {"parallel_rebalance": "live", "catch_up_threshold": 0}
    application: ClassVar[type[Application]] = MergingBesideGaps
    keeps_metadata: ClassVar[bool] = True


@pytest.mark.parametrize("machine", [Merged, MergedWithoutWaiting, MergedInOrder, MergedBesideLive])
def test_an_asynchronous_commit_of_a_former_epoch_is_repeated_by_the_application(
    machine: type[Consumers],
) -> None:
    commits_as_the_epoch_changes(machine)


@pytest.mark.parametrize("machine", [Merged, MergedInOrder, MergedBesideLive])
def test_a_log_is_read_to_its_end_however_long_it_is(machine: type[Consumers]) -> None:
    nothing_of_a_long_log_is_left(machine)


def settled(machine: type[Consumers]) -> Any:
    machine.TestCase.settings = settings(
        deadline=None,
        max_examples=histories(10),
        stateful_step_count=20,
        derandomize=ALWAYS_THE_SAME,
    )
    return machine.TestCase


TestMerged = settled(Merged)
TestMergedWithoutWaiting = settled(MergedWithoutWaiting)
TestMergedInOrder = settled(MergedInOrder)
TestMergedBesideLive = settled(MergedBesideLive)
