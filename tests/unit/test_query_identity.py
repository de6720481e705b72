"""A query keeps its id, and its batch numbers grow, from run to run."""

from __future__ import annotations

from pyspark_kafka_rebalance.source.offsets.query_identity import QueryIdentity
from pyspark_kafka_rebalance.source.offsets.stream_offset import StreamOffset


def test_a_new_query_has_an_id_of_its_own() -> None:
    ids = {QueryIdentity().id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in ids)


def test_a_restart_goes_on_with_the_id_and_the_number() -> None:
    identity = QueryIdentity()
    identity.restore(StreamOffset(query="q", batch=7))
    identity.restore(StreamOffset(query="q", batch=8))  # the batch that is replayed
    identity.restore(StreamOffset())
    assert (identity.id, identity.batch) == ("q", 8)
    assert [identity.next_batch(), identity.next_batch()] == [9, 10]


def test_an_offset_of_an_older_release_names_no_query() -> None:
    identity = QueryIdentity()
    identity.restore(StreamOffset())
    first = identity.id
    identity.restore(StreamOffset(query="q", batch=7))
    assert identity.id == first, "it is in use already"


def test_a_copy_becomes_another_query() -> None:
    identity = QueryIdentity()
    identity.restore(StreamOffset(query="q", batch=7))
    assert identity.renew() == identity.id != "q"
    assert identity.next_batch() == 8
