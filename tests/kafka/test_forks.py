"""A child that is forked while a client is open: it neither hangs nor acts for its parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from group_members import PATIENCE_S, losses, owns, parts_of, poll_until, records
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from producer_groups import read_committed

from pyspark_kafka_rebalance import DeferredRevokeConsumer, Producer, ProducerGroup
from pyspark_kafka_rebalance.transport.secured_clients import admin_client

pytestmark = [
    pytest.mark.each_protocol,
    # Python 3.12 warns of what is tried here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

REFUSED = kafka_errors.IllegalStateError


def forked(run: Callable[[], object]) -> int | None:
    """Run it in a forked child; its exit status, 0 if it returned, or None if it hung."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(how)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(REFUSED, match="has to make its own"):
        call()


def test_a_child_of_a_member_closes_nothing_and_may_do_nothing(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 10)
    member: DeferredRevokeConsumer = consumers(topic_name)
    polled = poll_until(owns(member, 2), member)
    poll_until(lambda: len(records(polled[member])) == 10, member, results=polled)
    where = TopicPartition(topic_name, 0)

    def leave_the_block() -> None:
        with member:
            pass
        member.close()

    def use_it() -> None:
        refused(lambda: member.poll(timeout_ms=10))
        refused(member.poll_membership)
        refused(lambda: member.poll_arrow(timeout_ms=10))
        refused(lambda: next(member))
        refused(lambda: member.commit_processed({where: 1}))
        refused(lambda: member.processed(where, 0))
        refused(member.commit)
        refused(lambda: member.drain(10))
        refused(lambda: member.committed(where))
        refused(lambda: member.seek(where, 0))

    def all_locks_are_held(run: Callable[[], None]) -> int | None:
        """As if the fork had met a thread of the parent that has them."""
        with member._hand_outs.lock, parts_of(member).record.lock:
            return forked(run)

    for run in (leave_the_block, use_it):
        assert all_locks_are_held(run) == 0
    kafka.produce(topic_name, [b"x"] * 10)
    poll_until(lambda: len(records(polled[member])) == 20, member, results=polled)
    member.commit_processed({where: 10})
    assert member.drain(30_000)
    assert losses(member) == 0


def test_a_child_of_an_admin_client_closes_nothing(kafka, topic_name):
    kafka.create_topic(topic_name)
    with admin_client({"bootstrap_servers": kafka.bootstrap_servers}) as admin:
        assert forked(admin.close) == 0
        assert topic_name in admin.list_topics()


def test_a_child_of_a_producer_leaves_its_transaction_alone(kafka, topic_name):
    kafka.create_topic(topic_name)
    with Producer(topic_name, bootstrap_servers=kafka.bootstrap_servers) as producer:
        transaction = producer.transaction()
        transaction.send(topic_name, b"x")

        def leave_the_block() -> None:
            with producer:
                refused(lambda: transaction.send(topic_name, b"y"))
                refused(transaction.flush)
                refused(transaction.commit)
                refused(producer.initialize)

        with producer._lock, producer._rows_lock:
            assert forked(leave_the_block) == 0
        transaction.commit()
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:

        def use_it() -> None:
            refused(lambda: producer.send(topic_name, b"y"))
            refused(producer.flush)
            producer.close()

        assert forked(use_it) == 0
        producer.send(topic_name, b"z")
        producer.flush()
    assert read_committed(kafka, topic_name) == [b"x", b"z"]


def test_a_child_of_a_producer_group_leaves_its_transaction_alone(kafka, topic_name, group_id):
    kafka.create_topic(topic_name)
    with ProducerGroup(group_id, 1, bootstrap_servers=kafka.bootstrap_servers) as group:
        group.subscribe()
        group.send(topic_name, b"x", source_partition=0)

        def leave_the_block() -> None:
            with group:
                refused(lambda: group.send(topic_name, b"y", source_partition=0))
                refused(group.commit_transaction)

        assert forked(leave_the_block) == 0
        group.commit_transaction({0: "1"})
    with ProducerGroup(group_id, 1, bootstrap_servers=kafka.bootstrap_servers) as group:
        assert group.subscribe() == {0: "1"}
