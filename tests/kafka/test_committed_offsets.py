"""What is asked of the group's committed offsets is answered as they are then, on a real broker."""

from __future__ import annotations

import pytest
from group_members import owns, poll_until, wait_until
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

pytestmark = pytest.mark.each_protocol


def test_an_answer_that_nobody_waited_for_is_not_given_to_the_next_question(
    kafka, topic_name, consumers
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    partition = TopicPartition(topic_name, 0)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    member.commit_processed({partition: 3})
    assert member.drain(timeout_ms=10_000)
    kafka.suspend()
    try:
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            member.committed(partition, timeout_ms=300)
    finally:
        kafka.resume()
    member.commit_processed({partition: 10})
    assert member.drain(timeout_ms=10_000)
    assert member.committed(partition) == 10


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_start_that_was_looked_up_before_a_loss_is_not_that_of_a_later_assignment(
    kafka, topic_name, group_id, consumers, reset
):
    """Short polls end before the answer comes; another member owns the partition in between."""
    kafka.create_topic(topic_name)
    partition = TopicPartition(topic_name, 0)
    first = consumers(topic_name, max_poll_interval_ms=2_000, auto_offset_reset=reset)
    wait_until(lambda: first.poll(timeout_ms=0) or first.assignment(), "assigned")
    second = consumers(topic_name, auto_offset_reset=reset)
    seen: list[int] = []

    def second_reads() -> bool:
        for found in second.poll(timeout_ms=50).values():
            seen.extend(record.offset for record in found)
            second.commit_processed({partition: found[-1].offset + 1})
        return 9 in seen

    def starts() -> bool:
        second_reads()
        return owns(second, 1)() and second.position(partition, timeout_ms=1_000) is not None

    wait_until(starts, "the second takes over")
    kafka.produce(topic_name, [b"x"] * 10)
    wait_until(second_reads, "the second reads")
    second.close()
    assert kafka.committed(group_id) == {partition: 10}
    kafka.produce(topic_name, [b"x"] * 10)
    again: list[int] = []

    def first_reads() -> bool:
        for found in first.poll(timeout_ms=50).values():
            again.extend(record.offset for record in found)
        return 19 in again

    wait_until(first_reads, "the first reads on")
    assert again == list(range(10, 20))
