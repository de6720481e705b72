"""What the errors of producers say: who refused what, and why, from the first moment on."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from in_memory_connections import in_memory
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from test_produce_delivery import World, begin
from test_produce_transaction_machine import SOURCE, P, Wire, error

from pyspark_kafka_rebalance.errors import TransactionAbortedError
from pyspark_kafka_rebalance.produce.requests import (
    AddPartitionsToTxn,
    Answer,
    EndTxn,
    FindCoordinator,
    Produce,
    Request,
    TxnOffsetCommit,
)
from pyspark_kafka_rebalance.produce.transaction_errors import Errors, Outcome
from pyspark_kafka_rebalance.produce.wire import produce_answers

PATIENCE_S = 60
WITHOUT_KEY = "record 2 of the batch: Compacted topic cannot accept message without key."
REFUSED = "t-0 refused a batch of 1 record: INVALID_RECORD (record 1 of the batch: no key)"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (
            Answer(Errors.INVALID_RECORD, detail=WITHOUT_KEY),
            f"refused a batch of 3 records: INVALID_RECORD ({WITHOUT_KEY})",
        ),
        (
            Answer(Errors.INVALID_RECORD),
            "refused a batch of 3 records: INVALID_RECORD (a record without a key for a compacted "
            "topic, or one that is not valid)",
        ),
        (
            Answer(Errors.TOPIC_AUTHORIZATION_FAILED),
            "refused a batch of 3 records: TOPIC_AUTHORIZATION_FAILED (it needs WRITE on topic "
            f"{P.topic})",
        ),
        (
            Answer(Errors.CLUSTER_AUTHORIZATION_FAILED),
            "refused a batch of 3 records: CLUSTER_AUTHORIZATION_FAILED (it needs IDEMPOTENT_WRITE "
            "on the cluster)",
        ),
        (Answer(1234), "refused a batch of 3 records: error 1234"),
    ],
)
def test_a_leaders_refusal_names_partition_and_batch(answer: Answer, cause: str) -> None:
    wire = Wire(2)
    handle = wire.begin()
    wire.send(records=3)
    wire.answer(Produce, answer)
    said = f"Produce: {P.topic}-{P.partition} {cause}"
    with pytest.raises(TransactionAbortedError) as refused:
        wire.machine.add_records(handle, P, 1)
    if wire.step.ended is None:
        assert (refused.value.reason, wire.machine.doom) == (said, said)
        with pytest.raises(TransactionAbortedError) as unnamed:
            wire.machine.add_records(wire.machine.open_transaction, P, 1)
        assert unnamed.value.reason == said
        wire.answer(EndTxn, Answer(producer_id=7, producer_epoch=1))
    assert wire.step.ended is not None
    assert wire.step.ended.cause == said


def test_a_record_that_is_too_large_says_what_to_do() -> None:
    wire = Wire(2)
    wire.begin()
    wire.send()
    wire.answer(Produce, error(Errors.MESSAGE_TOO_LARGE))
    assert f"a record for {P.topic}-{P.partition} is larger than" in wire.machine.doom
    assert "(MESSAGE_TOO_LARGE); make it smaller, or raise" in wire.machine.doom


def test_a_groups_refusal_names_its_generation() -> None:
    wire = Wire(2)
    wire.begin()
    wire.offsets(5)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: int(Errors.ILLEGAL_GENERATION)}))
    assert wire.machine.doom == (
        f"TxnOffsetCommit: group g refused offsets of member 'm' of generation 1 for "
        f"{SOURCE.topic}-{SOURCE.partition}: ILLEGAL_GENERATION (the member left the group, or its "
        "generation is past: poll, and repeat the transaction)"
    )


def test_a_partition_that_cannot_join_is_named() -> None:
    wire = Wire(1)
    wire.begin()
    wire.send()
    code = int(Errors.TOPIC_AUTHORIZATION_FAILED)
    wire.answer(AddPartitionsToTxn, Answer(errors={P: code}))
    assert wire.step.ended is not None or wire.machine.doom
    cause = wire.machine.doom or (wire.step.ended and wire.step.ended.cause)
    assert cause == (
        f"AddPartitionsToTxn: {P.topic}-{P.partition}: TOPIC_AUTHORIZATION_FAILED (it needs WRITE "
        f"on topic {P.topic})"
    )


def answer_records(world: World, answer: Answer) -> None:
    """Answer what is to be sent now, and the records that follow from it with ``answer``."""
    for _ in range(2):
        for parcel in world.take():
            answers = [
                (each, answer if isinstance(each, Produce) else world.answer_to(each))
                for each in parcel.requests
            ]
            world.flying.remove(parcel)
            world.delivery.answered(parcel, answers, world.now)


@pytest.mark.parametrize("version", [None, 2])
def test_what_is_not_delivered_in_time_says_why(version: int | None) -> None:
    world = World(version, timeout_s=10)
    if version is not None:
        begin(world)
    world.settle()
    future = world.send(b"a")
    world.delivery.close_open()
    answer_records(world, Answer(Errors.UNKNOWN_TOPIC_OR_PARTITION))
    world.now = 13
    world.delivery.expire(world.now)
    world.settle()
    world.resolve()
    assert "UNKNOWN_TOPIC_OR_PARTITION (the topic, or this partition" in str(future.exception(0))
    assert "records for t-0 were not" in str(future.exception(0))


def test_idempotent_batches_that_are_refused_say_why() -> None:
    world = World(None)
    world.settle()
    future = world.send(b"a")
    world.delivery.close_open()
    answer_records(world, Answer(Errors.INVALID_RECORD, detail="no key"))
    world.resolve()
    said = "t-0 refused a batch of 1 record: INVALID_RECORD (no key)"
    assert said in str(future.exception(0))
    (failure,) = world.delivery.take_failures()
    assert said in str(failure)


def test_a_producer_id_that_is_refused_says_what_is_missing() -> None:
    world = World(None)
    future = world.send(b"a")
    world.delivery.close_open()
    for parcel in world.take():
        answers = [(r, error(Errors.CLUSTER_AUTHORIZATION_FAILED)) for r in parcel.requests]
        world.delivery.answered(parcel, answers, world.now)
    world.resolve()
    said = "t-0: CLUSTER_AUTHORIZATION_FAILED (it needs IDEMPOTENT_WRITE on the cluster)"
    assert said in str(future.exception(0))


def test_a_fenced_producer_says_what_may_be_the_reason() -> None:
    wire = Wire(2)
    handle = wire.begin()
    wire.send()
    wire.answer(Produce, Answer(base_offset=0))
    wire.commit()
    wire.answer(EndTxn, error(Errors.PRODUCER_FENCED))
    assert wire.step.ended is not None
    assert wire.step.ended.transaction == handle
    assert wire.step.ended.cause == wire.machine.cause
    assert wire.machine.cause.startswith(
        "EndTxn: the commit of producer epoch 0: PRODUCER_FENCED (another producer has the "
    )


def test_the_cause_is_told_during_the_abort_and_ever_after() -> None:
    """Each call, of each thread; also once later transactions have ended."""
    with in_memory(2, linger_ms=1) as (producer, connections):
        answer: Any = connections._answer

        def refuse(message: Any, request: Request) -> Answer:
            if isinstance(request, Produce) and request.transaction == one.handle:
                return Answer(Errors.INVALID_RECORD, detail="record 1 of the batch: no key")
            said: Answer = answer(message, request)
            return said

        connections._answer = refuse  # type: ignore[method-assign]
        holds = True
        connections.lose = lambda r: "on the way" if holds and isinstance(r, EndTxn) else ""
        one = producer.transaction()
        with pytest.raises(TransactionAbortedError, match="refused a batch"):  # noqa: PT012
            one.send("t", b"x", partition=0)
            one.flush(PATIENCE_S * 1000)

        def check_all() -> None:
            for call in (
                lambda: one.send("t", b"y", partition=0),
                lambda: one.flush(1000),
                lambda: one.commit(10),
            ):
                with pytest.raises(TransactionAbortedError) as raised:
                    call()
                causes.append(raised.value.reason)

        causes: list[str] = []
        threads = [threading.Thread(target=check_all) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert one.outcome is None, "its abort is under way"
        assert len(causes) == 9
        holds = False
        deadline = time.monotonic() + PATIENCE_S
        while one.outcome is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        check_all()
        with producer.transaction() as two:
            two.send("t", b"z", partition=0)
        check_all()
        assert (one.outcome, two.outcome) == (Outcome.ABORTED, Outcome.COMMITTED)
        assert set(causes) == {f"Produce: {REFUSED}"}
        assert len(causes) == 15


def test_a_time_out_says_which_records_wait() -> None:
    with in_memory(2, linger_ms=1) as (producer, connections):
        connections.lose = lambda r: "on the way" if isinstance(r, Produce) else ""
        one = producer.transaction()
        one.send("t", b"x", partition=1)
        with pytest.raises(
            kafka_errors.KafkaTimeoutError,
            match=r"the end of transaction 1: not after .* records for t-1 wait",
        ):
            one.commit(300)
        connections.lose = lambda r: ""
        one.commit(PATIENCE_S * 1000)


def test_what_a_leader_says_of_a_record() -> None:
    first = SimpleNamespace(batch_index=1, batch_index_error_message="no key")
    refused = SimpleNamespace(
        index=0, error_code=87, base_offset=-1, record_errors=[first], error_message="all"
    )
    topic = SimpleNamespace(name="t", partition_responses=[refused])
    response = SimpleNamespace(responses=[topic])
    asked: Any = SimpleNamespace(partition=TopicPartition("t", 0))
    ((_, answer),) = produce_answers([asked], response)
    assert answer.detail == "record 2 of the batch: no key"
    refused.record_errors = []
    ((_, answer),) = produce_answers([asked], response)
    assert answer.detail == "all"
