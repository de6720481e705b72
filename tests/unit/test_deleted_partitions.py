"""What counts as deleted: by answers in a row, whatever the metadata say in between."""

from __future__ import annotations

from collections.abc import Collection
from uuid import uuid4

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.source.group.owned.deleted_partitions import DeletedPartitions, Left

P, Q = (TopicPartition("t", n) for n in range(2))


class Looks:
    """A look every second, at a client's metadata and a broker's answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.partitions = DeletedPartitions(lambda: self.now)
        self.asked: frozenset[TopicPartition] = frozenset()

    def look(
        self,
        owned: Collection[TopicPartition] = (P, Q),
        known: Collection[TopicPartition] = (P, Q),
        exist: Collection[TopicPartition] = (P, Q),
    ) -> frozenset[TopicPartition]:
        self.now += 1.0
        assert self.partitions.is_due()
        assert not self.partitions.is_due()
        watched = self.partitions.watched(owned)
        self.asked = self.partitions.suspects(watched, watched & frozenset(known))
        return self.partitions.answered(self.asked - frozenset(exist))


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_what_the_metadata_know_is_not_asked_for(looks: Looks) -> None:
    assert looks.look(exist=()) == frozenset()
    assert looks.asked == frozenset()


def test_metadata_that_lack_a_topic_for_a_moment_delete_nothing(looks: Looks) -> None:
    for _ in range(3):
        assert looks.look(known=[P]) == frozenset()
        assert looks.asked == {Q}


def test_one_answer_that_lacks_a_topic_deletes_nothing(looks: Looks) -> None:
    """It may be that of a broker that has just started."""
    for _ in range(3):
        assert looks.look(known=[P], exist=[P]) == frozenset()
        assert looks.look() == frozenset()
        assert looks.asked == {Q}


def test_two_answers_in_a_row_say_that_it_is_deleted(looks: Looks) -> None:
    assert looks.look(known=[P], exist=[P]) == frozenset()
    assert looks.look(known=[P], exist=[P]) == {Q}


def test_what_the_coordinator_does_not_know_is_asked_for_whatever_the_metadata_say(
    looks: Looks,
) -> None:
    looks.partitions.doubt([P])
    assert looks.look(exist=[Q]) == frozenset()
    assert looks.partitions.in_doubt == {P}
    assert looks.look(exist=[Q]) == {P}
    assert not looks.partitions.in_doubt


def test_a_doubt_ends_with_an_answer_that_has_the_partition(looks: Looks) -> None:
    looks.partitions.doubt([P])
    assert looks.look() == frozenset()
    assert not looks.partitions.in_doubt


def test_what_left_in_a_rebalance_is_looked_for_until_the_metadata_are_new(looks: Looks) -> None:
    looks.partitions.left({P: Left(5, None)})
    assert looks.look(owned=[Q]) == frozenset()
    assert looks.look(owned=[Q], known=[Q], exist=[Q]) == frozenset()
    assert looks.look(owned=[Q], known=[Q], exist=[Q]) == {P}


def test_what_left_in_a_rebalance_and_is_there_is_another_owners(looks: Looks) -> None:
    looks.partitions.left({P: Left(5, None)})
    for _ in range(3):
        assert looks.look(owned=[Q]) == frozenset()
    assert looks.look(owned=[Q], known=[Q], exist=[Q]) == frozenset()


def test_what_left_in_a_rebalance_and_is_of_another_topic_by_now_is_told_once(looks: Looks) -> None:
    """The group takes it back because of the deletion, and no answer lacks the topic."""
    old, new = uuid4(), uuid4()
    left = {P: Left(5, old), Q: Left(7, None)}
    looks.partitions.left(left)
    assert looks.partitions.replaced({"t": old}) == {}
    assert looks.partitions.replaced({"other": new}) == {}
    assert looks.look(owned=()) == frozenset()
    found = looks.partitions.replaced({"t": new})
    assert {p: one.position for p, one in found.items()} == {P: 5}, "by name nothing is known"
    assert looks.partitions.replaced({"t": new}) == {}


def test_what_left_in_a_rebalance_long_ago_is_another_owners_to_miss(looks: Looks) -> None:
    looks.partitions.left({P: Left(5, uuid4())})
    for _ in range(3):
        assert looks.look(owned=[Q]) == frozenset()
    assert looks.partitions.replaced({"t": uuid4()}) == {}


def test_two_answers_in_a_row_say_that_it_has_another_topic(looks: Looks) -> None:
    in_another = looks.partitions.in_another_topic
    assert in_another(frozenset({P})) == frozenset()
    assert in_another(frozenset({Q})) == frozenset()
    assert in_another(frozenset({P, Q})) == {Q}
    assert in_another(frozenset()) == frozenset()


def test_the_ids_of_topics_are_asked_for_more_often_while_anything_is_read(looks: Looks) -> None:
    wants = looks.partitions.wants_topic_ids
    looks.now = 4.0
    assert not wants(True)
    looks.now = 6.0
    assert not wants(False)
    assert wants(True)
    assert not wants(True)
    looks.now = 65.0
    assert not wants(False)
    looks.now = 67.0
    assert wants(False)
