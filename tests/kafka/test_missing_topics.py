"""Members whose topics do not exist: deleted, never created, matched by no pattern."""

from __future__ import annotations

import pytest
from group_members import owns, parts_of, poll_until, wait_until

pytestmark = pytest.mark.each_protocol

#: What the member subscribes to, and the topics of it that exist at first.
SUBSCRIPTIONS = {
    "its only topic is deleted": (("a",), None, ("a",)),
    "all its topics are deleted": (("a", "b"), None, ("a", "b")),
    "no topic matches its pattern any more": ((), "[ab]", ("a",)),
    "its only topic was never there": (("a",), None, ()),
}


@pytest.mark.parametrize("missing", SUBSCRIPTIONS)
def test_a_member_without_topics_holds_nobody_up(kafka, topic_name, consumers, missing):
    """kafka-python takes part in the rebalance all the same; and reads what is created anew."""
    names, pattern, existing = SUBSCRIPTIONS[missing]
    topics = [f"{topic_name}.{name}" for name in names]
    there = [f"{topic_name}.{name}" for name in existing]
    member = consumers(metadata_max_age_ms=200)
    if pattern is None:
        member.subscribe(topics)
    else:
        member.subscribe(pattern=f"{topic_name}.{pattern}")
    for topic in there:
        kafka.create_topic(topic)
    poll_until(owns(member, len(there)), member)
    for topic in there:
        kafka.delete_topic(topic)
    counts = parts_of(member).metadata.partition_counts
    wait_until(lambda: not any(counts(there).values()), "its metadata know of the deletion")
    other = consumers(f"{topic_name}.other")
    kafka.create_topic(f"{topic_name}.other", partitions=2)
    poll_until(owns(other, 2), member, other)
    again = there or topics
    for topic in again:
        kafka.create_topic(topic)
        kafka.produce(topic, [b"x"])
    read: set[str] = set()
    while read < set(again):
        other.poll_membership()
        read |= {partition.topic for partition in member.poll(timeout_ms=50)}


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_query_whose_only_topic_is_deleted_holds_nobody_up(
    kafka, topic_name, query_of, consumers
):
    kafka.create_topic(f"{topic_name}.gone")
    query = query_of(subscribe=f"{topic_name}.gone", kafka__metadata__max__age__ms="200")
    wait_until(lambda: len(query.plannable()) == 1, "it is assigned")
    kafka.delete_topic(f"{topic_name}.gone")
    wait_until(lambda: bool(query.deletions.take()), "it is found deleted")
    kafka.create_topic(f"{topic_name}.other", partitions=2)
    other = consumers(f"{topic_name}.other")
    poll_until(owns(other, 2), other)
    query.raise_failure()
