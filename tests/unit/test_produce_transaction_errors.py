"""The table of request and error code: complete, and right where it matters most."""

from __future__ import annotations

import pytest

from pyspark_kafka_rebalance.produce import requests
from pyspark_kafka_rebalance.produce.requests import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    EndTxn,
    Fetch,
    FindCoordinator,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
)
from pyspark_kafka_rebalance.produce.transaction_errors import (
    TABLE,
    UNKNOWN_CODE,
    Errors,
    Outcome,
    Verdict,
    error_name,
    outcome_by_offsets,
    outcome_by_records,
    refused_commit,
    verdict_of,
    worst,
)

E, V = Errors, Verdict
KINDS = [
    kind
    for kind in vars(requests).values()
    if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
]
OF_COORDINATOR = [InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn]
OF_PRODUCER = [*OF_COORDINATOR, TxnOffsetCommit, Produce]


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_has_rows(kind: type[Request]) -> None:
    assert len(KINDS) == 10
    assert TABLE[kind][E.NONE] is V.DONE
    assert kind in UNKNOWN_CODE
    assert verdict_of(kind, 9_999) > V.RETRY_ELSEWHERE  # nothing is assumed to be done


def test_every_error_that_has_a_name_has_a_row() -> None:
    assert set().union(*TABLE.values()) == set(Errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "code",
    [
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.NOT_LEADER_OR_FOLLOWER,
        E.KAFKA_STORAGE_ERROR,
        E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.REQUEST_TIMED_OUT,
        E.NETWORK_EXCEPTION,
        E.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_what_passes_is_tried_again(kind: type[Request], code: Errors) -> None:
    assert verdict_of(kind, code) in (V.RETRY, V.RETRY_ELSEWHERE)


@pytest.mark.parametrize("kind", [*OF_COORDINATOR, TxnOffsetCommit])
def test_a_coordinator_that_moved_is_looked_up(kind: type[Request]) -> None:
    for code in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE):
        assert verdict_of(kind, code) is V.RETRY_ELSEWHERE


@pytest.mark.parametrize("kind", OF_PRODUCER)
def test_the_transaction_before_may_still_be_completing(kind: type[Request]) -> None:
    assert verdict_of(kind, E.CONCURRENT_TRANSACTIONS) is V.RETRY


@pytest.mark.parametrize("kind", OF_PRODUCER)
def test_fenced_is_what_the_coordinator_says(kind: type[Request]) -> None:
    assert verdict_of(kind, E.PRODUCER_FENCED) is V.FENCED
    of_a_leader = kind in (Produce, TxnOffsetCommit)
    assert verdict_of(kind, E.INVALID_PRODUCER_EPOCH) is (V.NEW_EPOCH if of_a_leader else V.FENCED)


@pytest.mark.parametrize("kind", OF_PRODUCER)
def test_an_unknown_producer_id_needs_another(kind: type[Request]) -> None:
    if kind is not InitProducerId:
        for code in (E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID):
            assert verdict_of(kind, code) is V.NEW_EPOCH


@pytest.mark.parametrize("kind", [AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn])
def test_transaction_abortable_aborts(kind: type[Request]) -> None:
    assert verdict_of(kind, E.TRANSACTION_ABORTABLE) is V.ABORT


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_permission_does_not_come_back(kind: type[Request]) -> None:
    assert verdict_of(kind, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) is V.FATAL
    assert verdict_of(kind, E.CLUSTER_AUTHORIZATION_FAILED) is V.FATAL


def test_permissions_of_a_topic_or_a_group_end_one_transaction() -> None:
    assert verdict_of(AddPartitionsToTxn, E.TOPIC_AUTHORIZATION_FAILED) is V.ABORT
    for kind in (AddOffsetsToTxn, TxnOffsetCommit, FindCoordinator):
        assert verdict_of(kind, E.GROUP_AUTHORIZATION_FAILED) is V.ABORT


def test_a_timeout_above_the_brokers_maximum_is_one_clear_error() -> None:
    assert verdict_of(InitProducerId, E.INVALID_TRANSACTION_TIMEOUT) is V.FATAL


def test_a_refused_batch_leaves_a_gap_in_the_sequence() -> None:
    refusals = {code for code, verdict in TABLE[Produce].items() if verdict is V.ABORT}
    assert refusals == set()
    assert verdict_of(Produce, E.OUT_OF_ORDER_SEQUENCE_NUMBER) is V.NEW_EPOCH
    assert verdict_of(Produce, E.DUPLICATE_SEQUENCE_NUMBER) is V.DONE


def test_a_question_has_an_answer_or_none() -> None:
    for question in (OffsetFetch, Fetch):
        assert set(TABLE[question].values()) == {V.DONE, V.RETRY, V.RETRY_ELSEWHERE, V.FATAL}
    assert verdict_of(OffsetFetch, E.UNSTABLE_OFFSET_COMMIT) is V.RETRY


def test_the_worst_partition_decides() -> None:
    codes = [E.OPERATION_NOT_ATTEMPTED, E.TOPIC_AUTHORIZATION_FAILED, E.NONE]
    assert worst(AddPartitionsToTxn, codes) == (V.ABORT, E.TOPIC_AUTHORIZATION_FAILED)
    assert worst(AddPartitionsToTxn, []) == (V.DONE, 0)


def test_names() -> None:
    assert error_name(120) == "TRANSACTION_ABORTABLE"
    assert error_name(9_999) == "error 9999"


@pytest.mark.parametrize("verdict", [V.ABORT, V.NEW_EPOCH, V.FENCED, V.FATAL])
def test_a_refused_commit_is_in_doubt_only_with_another_copy(verdict: Verdict) -> None:
    assert refused_commit(verdict, other_copies=False) is Outcome.ABORTED
    assert refused_commit(verdict, other_copies=True) is None


@pytest.mark.parametrize(
    ("before", "expected", "found", "outcome"),
    [
        (Offset(3), Offset(5), Offset(5), Outcome.COMMITTED),
        (Offset(3), Offset(5), Offset(3), Outcome.ABORTED),
        (Offset(-1), Offset(5), None, Outcome.ABORTED),
        (Offset(3), Offset(5), Offset(9), None),
        (Offset(3), Offset(5), None, None),
        (None, Offset(5), Offset(5), None),
        (Offset(5), Offset(5), Offset(5), None),
        (Offset(5, "a"), Offset(5, "b"), Offset(5, "b"), Outcome.COMMITTED),
        (Offset(5, "a"), Offset(5, "b"), Offset(5, "a"), Outcome.ABORTED),
        (Offset(3), Offset(5, "", 7), Offset(5), Outcome.COMMITTED),
    ],
)
def test_what_stable_offsets_tell(
    before: Offset | None, expected: Offset, found: Offset | None, outcome: Outcome | None
) -> None:
    assert outcome_by_offsets(before, expected, found) is outcome


@pytest.mark.parametrize(
    ("stable", "aborted", "outcome"),
    [
        (10, (), None),  # the record is at offset 10
        (11, (), Outcome.COMMITTED),
        (30, ((7, 8),), Outcome.ABORTED),
        (30, ((7, 10),), Outcome.ABORTED),
        (30, ((7, 20),), Outcome.COMMITTED),  # a later one of the same producer
        (30, ((8, 8),), Outcome.COMMITTED),  # another producer's
    ],
)
def test_what_a_reader_of_committed_records_tells(
    stable: int, aborted: tuple[tuple[int, int], ...], outcome: Outcome | None
) -> None:
    answer = Answer(last_stable_offset=stable, aborted=aborted)
    assert outcome_by_records(7, 10, answer) is outcome
