"""Queries to the brokers: what kafka-python answers wrongly, or not although a broker would."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from kafka import KafkaConsumer
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
)
from kafka.structs import TopicPartition
from settable_clock import Clock

from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.kafka_python.questions import first_answer
from pyspark_kafka_rebalance.consumer.kafka_python.topic_metadata import TopicMetadata

P = TopicPartition("orders", 0)


@pytest.mark.parametrize("asked", ["beginning_offsets", "end_offsets"])
def test_a_leader_that_goes_away_meanwhile_is_a_passing_error(asked: str) -> None:
    consumer = DeferredRevokeConsumer.__new__(DeferredRevokeConsumer)
    with (
        mock.patch.object(KafkaConsumer, asked, side_effect=KeyError(P)),
        pytest.raises(LeaderNotAvailableError, match="orders") as caught,
    ):
        getattr(consumer, asked)([P], 1_000)
    assert caught.value.retriable
    with mock.patch.object(KafkaConsumer, asked, return_value={P: 7}):
        assert getattr(consumer, asked)([P], 1_000) == {P: 7}


class Brokers:
    """A connection manager whose brokers answer one after the other; the last one again."""

    def __init__(self, *answers: str | KafkaError) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.clock = Clock()
        self._net = self
        nodes = [SimpleNamespace(host=host, port=9092) for host in ("localhost", "b")]
        self.cluster = SimpleNamespace(brokers=lambda: nodes)

    def send(self) -> Any:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def wait_for(self, answer: Any, timeout_ms: float) -> Any:
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def ask(self, timeout_ms: float) -> Any:
        """By the clock of kafka-python's timers, which goes on while the call sleeps."""
        manager: Any = self
        timers = SimpleNamespace(monotonic=self.clock)
        with mock.patch("kafka.util.time", timers):
            return asyncio.run(first_answer(manager, self.send, timeout_ms))


def test_a_broker_that_refuses_the_connection_is_not_the_last_one_asked() -> None:
    brokers = Brokers(KafkaConnectionError("refused"), NodeNotReadyError("busy"), "answer")
    assert brokers.ask(60_000) == "answer"
    assert brokers.asked == 3


def test_what_the_last_one_met_is_said_when_no_broker_answers() -> None:
    brokers = Brokers(KafkaConnectionError("refused"))
    with pytest.raises(
        KafkaTimeoutError, match=r"within 0.03 s: KafkaConnectionError.*refused"
    ) as e:
        brokers.ask(25)
    assert "at b:9092, localhost:9092 (their advertised" in str(e.value)
    assert brokers.asked == 4, "every 10 ms, and when the time is up"


def test_a_refusal_for_good_is_not_taken_to_the_next_broker() -> None:
    brokers = Brokers(SaslAuthenticationFailedError("no"), "answer")
    with pytest.raises(SaslAuthenticationFailedError):
        brokers.ask(60_000)
    assert brokers.asked == 1


def test_a_broker_that_is_silent_when_a_start_asks_for_topics_is_not_the_last_one_asked() -> None:
    """The refresh that the start found under way failed it, although other brokers answered."""
    brokers: Any = Brokers("answer")
    under_way = [True, False]

    async def wait_for(refresh: object, timeout_ms: float) -> None:
        raise RequestTimedOutError("after 9999 ms")

    class Cluster:
        need_all_topic_metadata = False
        refresh_metadata = None
        metadata_refresh_in_progress = property(lambda self: under_way.pop(0))

        def request_update(self) -> object:
            return brokers.send()

    brokers.call_soon = lambda method: None
    metadata: Any = TopicMetadata.__new__(TopicMetadata)
    metadata.cluster, metadata._manager = Cluster(), brokers
    metadata._loop, metadata._asking_for_all = SimpleNamespace(wait_for=wait_for), 0
    asyncio.run(metadata._refresh_all(60_000))
    assert brokers.asked == 1
