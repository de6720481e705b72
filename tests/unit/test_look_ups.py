"""What brokers told of timestamps is kept while it holds, and tells what they would tell again."""

from __future__ import annotations

from histories import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.found_records import RecordTime
from pyspark_kafka_rebalance.source.plan.look_ups import LookUps
from pyspark_kafka_rebalance.source.plan.timelines import Rows

P, Q = (TopicPartition("t", n) for n in range(2))


class Logs:
    """Logs in memory, as lists of timestamps."""

    def __init__(self, **logs: list[int]) -> None:
        self.logs = {TopicPartition("t", "pq".index(name)): log for name, log in logs.items()}
        self.positions = dict.fromkeys(self.logs, 0)
        self.asked: list[tuple[int, set[TopicPartition]]] = []
        self.known = LookUps()

    def first_at(self, p: TopicPartition, timestamp: int) -> RecordTime | None:
        records = enumerate(self.logs[p])
        return next((RecordTime(o, at) for o, at in records if at >= timestamp), None)

    def begin(self) -> bool:
        unread = {p: len(log) for p, log in self.logs.items() if self.positions[p] < len(log)}
        return self.known.begin(self.positions, unread)

    def ends_at(self, timestamp: int) -> tuple[dict[TopicPartition, int], int | None]:
        while True:
            ends, following, unknown = self.known.ends_at(timestamp)
            if not unknown:
                return ends, following
            self.asked.append((timestamp, set(unknown)))
            self.known.learn(timestamp, {p: self.first_at(p, timestamp) for p in unknown})


def test_what_was_told_is_not_asked_again() -> None:
    logs = Logs(p=[10, 20, 30], q=[15, 40])
    assert logs.begin()
    assert logs.ends_at(20) == ({P: 1, Q: 1}, 20)
    assert logs.ends_at(20) == ({P: 1, Q: 1}, 20)
    assert logs.asked == [(20, {P, Q})]
    assert logs.ends_at(18) == ({P: 1, Q: 1}, 20), "nothing says what is at 18"
    assert logs.asked[1:] == [(18, {P, Q})]
    logs.positions = {P: 1, Q: 1}
    assert not logs.begin()
    assert logs.ends_at(19) == ({P: 1, Q: 1}, 20), "the first at 18 are as late"
    assert logs.ends_at(5) == ({P: 1, Q: 1}, 20), "what is passed by now is first for all before"
    assert logs.ends_at(25) == ({P: 2, Q: 1}, 30)
    assert logs.asked[2:] == [(25, {P})]


def test_that_there_is_none_holds_until_the_log_has_grown() -> None:
    logs = Logs(p=[10], q=[15])
    logs.begin()
    assert logs.ends_at(12) == ({P: 1, Q: 0}, 15)
    assert logs.known.without_any(12) == [P]
    logs.logs[P].append(11)
    logs.begin()
    assert logs.known.without_any(12) == []
    assert logs.ends_at(12) == ({P: 2, Q: 0}, 15)
    assert logs.asked == [(12, {P, Q}), (12, {P})]


def test_of_what_moves_back_nothing_is_known() -> None:
    logs = Logs(p=[10, 20], q=[10, 20])
    logs.positions = {P: 1, Q: 1}
    logs.begin()
    assert logs.ends_at(15) == ({P: 1, Q: 1}, 20)
    logs.positions = {P: 0, Q: 1}
    logs.begin()
    logs.ends_at(15)
    assert logs.asked == [(15, {P, Q}), (15, {P})]


def test_all_that_is_told_of_a_new_partition_is_doubted_until_it_is_trusted() -> None:
    logs = Logs(p=[10, 20, 30], q=[15, 40])
    logs.begin()
    logs.ends_at(20)
    assert logs.known.doubted_at(20) == {P: RecordTime(1, 20), Q: RecordTime(1, 40)}
    logs.known.trust(P)
    logs.known.is_record(Q, 1)
    assert logs.known.doubted_at(20) == {}
    logs.known.suspect([P])
    assert logs.known.doubted_at(20) == {P: RecordTime(1, 20)}
    logs.ends_at(50)
    assert logs.known.doubted_at(50) == {}, "there is none"


def test_a_leap_in_time_is_doubted_where_it_counts_and_once() -> None:
    logs = Logs(p=[10, 1_000_000], q=[5, 1_000_000])
    logs.begin()
    for partition in (P, Q):
        logs.known.trust(partition)
    for timestamp in (20, 10):
        logs.ends_at(timestamp)
    assert logs.known.doubted_at(20) == {p: RecordTime(1, 1_000_000) for p in (P, Q)}
    assert logs.known.doubted_at(10) == {Q: RecordTime(1, 1_000_000)}
    logs.known.is_record(P, 1)
    logs.ends_at(15)
    assert logs.known.doubted_at(20) == {Q: RecordTime(1, 1_000_000)}
    logs.known.forget_below(100)
    logs.positions = {P: 2, Q: 2}
    logs.begin()
    assert logs.known.doubted_at(20) == {}


def test_what_was_a_marker_is_put_right_wherever_it_was_told() -> None:
    logs = Logs(p=[10, 99, 20, 30, 40], q=[10])
    logs.begin()
    for timestamp in (15, 25, 60):
        logs.ends_at(timestamp)
    assert logs.known.correct(P, 1, 15, Rows([2, 3], [20, 30], 4))
    logs.asked.clear()
    assert logs.ends_at(15) == ({P: 2, Q: 1}, 20)
    assert logs.ends_at(25) == ({P: 3, Q: 1}, 30)
    assert logs.known.doubted_at(25) == {}
    logs.logs[P][1] = 0
    assert logs.ends_at(60) == ({P: 5, Q: 1}, None)
    assert logs.asked == [(60, {P})], "what was read tells nothing of this"


def test_what_lies_beyond_what_was_read_is_not_put_right() -> None:
    logs = Logs(p=[10, 99, 20, 30, 40])
    logs.begin()
    logs.ends_at(35)
    assert not logs.known.correct(P, 1, 35, Rows([2, 3], [20, 30], 4))
    logs.ends_at(45)
    assert logs.known.correct(P, 1, 45, Rows([2, 3, 4], [20, 30, 40], 5))
    assert logs.ends_at(45) == ({P: 5}, None), "there is none"


@settings(max_examples=histories(300), deadline=None)
@given(
    data=st.data(),
    logs=st.fixed_dictionaries({"p": st.lists(st.integers(0, 50)), "q": st.lists(st.just(7))}),
)
def test_what_is_kept_is_what_would_be_told(
    data: st.DataObject, logs: dict[str, list[int]]
) -> None:
    there = Logs(**logs)
    for _ in range(data.draw(st.integers(1, 12))):
        for p, log in there.logs.items():
            log.extend(data.draw(st.lists(st.integers(0, 50), max_size=4)))
            there.positions[p] = data.draw(st.integers(there.positions[p], len(log)))
        there.begin()
        there.known.forget_below(data.draw(st.integers(-1, 55)))
        for timestamp in data.draw(st.lists(st.integers(0, 55), max_size=4)):
            ends, following = there.ends_at(timestamp)
            left = []
            for p, end in ends.items():
                found = there.first_at(p, timestamp)
                assert end == max(len(there.logs[p]) if found is None else found.offset,
                                  there.positions[p])  # fmt: skip
                if end < len(there.logs[p]):
                    left.append(max(there.logs[p][: end + 1]))
            assert (following is None) == (not left)
            if following is not None:
                assert following <= min(left)
