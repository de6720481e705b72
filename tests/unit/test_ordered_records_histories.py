"""TimestampOrderedRecords in a thousand histories of a broker that stalls, and a group that moves.

The consumer is a model whose polls answer as the history says; time passes in its polls alone. What
must hold is written down here once more, from KIP-695's text:

 1. Of every partition each record is returned once, by one member or another, in offset order.
 2. A record is returned only if no other partition of its group has a buffered one that comes
    before it, and each that has none may be left out by the rule.
 3. Nobody waits while a record may be returned, nor beyond the moment from which one may.
 4. What the group would hand to the next owner is what was not returned.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from histories import histories
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import OffsetAndMetadata, TopicPartition
from test_timestamp_merge import batch

from pyspark_kafka_rebalance.consumer.fetch_metadata import EndOffset
from pyspark_kafka_rebalance.consumer.kafka_python.subscription import Subscription
from pyspark_kafka_rebalance.consumer.offsets.found_records import count
from pyspark_kafka_rebalance.consumer.ordered import ordered_records
from pyspark_kafka_rebalance.consumer.ordered.ordered_records import TimestampOrderedRecords
from pyspark_kafka_rebalance.consumer.poll_result import PollResult
from pyspark_kafka_rebalance.consumer.taken import Taken

PARTITIONS = [TopicPartition("t", n) for n in range(4)]
BOUND = 3

NOTHING, ALL, ONE, EMPTY = range(4)  # what a fetch of a partition is answered with


def record(partition: TopicPartition, offset: int, timestamp: int) -> ConsumerRecord:
    return ConsumerRecord(*partition, 0, offset, timestamp, 0, None, b"", [], None, -1, 0, -1)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Model:
    """A consumer, its group and its broker; and what is known of every partition."""

    def __init__(self, clock: Clock, idle_ms: int, two_groups: bool) -> None:
        self.clock, self.idle_ms, self.two_groups = clock, idle_ms, two_groups
        self.logs: dict[TopicPartition, list[Any]] = {p: [] for p in PARTITIONS}
        self.answers: dict[TopicPartition, int] = {}
        self.delivered: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 0)
        self.buffered: dict[TopicPartition, list[Any]] = {p: [] for p in PARTITIONS}
        self.time: dict[TopicPartition, int] = {}
        self.lag: dict[TopicPartition, int] = {}
        self.zero_since: dict[TopicPartition, float] = {}
        self.empty_since: dict[TopicPartition, float] = {}
        self.owned: set[TopicPartition] = set()
        self.gated: frozenset[TopicPartition] = frozenset()
        self.tells: dict[str, frozenset[TopicPartition]] = {}
        self.noticed: frozenset[TopicPartition] = frozenset()  # as paused
        state = SubscriptionState()
        state.subscribe(topics=["t"])
        self.state = state
        self.subscription = Subscription(state, ClusterMetadata())
        # What TimestampOrderedRecords uses of a DeferredRevokeConsumer.
        self._catching_up = None
        self._io = SimpleNamespace(subscription=self.subscription)
        self._polls = self._hand_outs = self._ownership = self
        self.truncations = SimpleNamespace(bound=lambda partition: "t")
        self._group_id = "g"
        self.config = {"max_poll_records": 4, "consumer_timeout_ms": math.inf}
        self._closed = False
        self.form: Any = None

    # -- HandOuts ---------------------------------------------------------------------------------

    def begin_poll(self) -> Taken:
        self.subscription.taken = Taken()
        return self.subscription.taken

    def take_back(self) -> None:
        self.subscription.take_back()

    # -- the consumer -----------------------------------------------------------------------------

    def _arrow_form(self, include_headers: bool) -> Any:
        return batch

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.owned)

    def hand_out(self, found: dict[TopicPartition, list[Any]]) -> dict[TopicPartition, list[Any]]:
        assert not self.subscription.ahead.reading
        return found

    def poll(self, form: Any, timeout_ms: float, number: int) -> PollResult:
        self.form = form
        for partition in self.gated:  # their revoke is completed: the next owner has them
            self.leave(partition)
        self.gated = frozenset()
        tells, self.tells = self.tells, {}
        if revoking := tells.get("to_be_revoked", frozenset()) & self.owned:
            self.gated = frozenset(revoking)
            self.subscription.set_assignment(self.owned, self.gated)
            for partition in revoking:
                self.forget(partition)
        records, metadata = {}, {}
        left = number
        for partition in sorted(self.owned - self.gated):
            answer = self.answers.pop(partition, NOTHING)
            position = self.subscription.read_position(partition)
            assert position is not None
            if answer == NOTHING or self.state.is_paused(partition):
                continue
            found = self.logs[partition][position:][: {ALL: left, ONE: min(1, left)}.get(answer, 0)]
            if found:
                left -= len(found)
                self.state.assignment[partition].position = OffsetAndMetadata(
                    found[-1].offset + 1, "", 0
                )
                records[partition] = [batch(found)] if form is batch else found
            position += len(found)
            seen = EndOffset(len(self.logs[partition]), 0).seen_from(position)
            metadata[partition] = seen
        if not records and not tells:
            self.waits(timeout_ms / 1000)
        for partition, seen in metadata.items():
            self.lag[partition] = seen.lag
            if seen.lag:
                self.zero_since.pop(partition, None)
            else:
                self.zero_since.setdefault(partition, self.clock.now)
            if partition in records:
                at = seen.position
                self.buffered[partition] += self.logs[partition][
                    at - count(records[partition]) : at
                ]
        return PollResult(records, **tells, metadata=metadata)

    def waits(self, seconds: float) -> None:
        if not any(self.may_return(group) for group in self.groups()):
            ready_at = min((self.ready_at(group) for group in self.groups()), default=math.inf)
            assert self.clock.now + seconds <= ready_at + 1e-6, "waits beyond the deadline"
        else:
            assert seconds == 0, "waits, and a record may be returned"
        self.clock.now += seconds

    # -- the history ------------------------------------------------------------------------------

    def produce(self, partition: TopicPartition, timestamp: int) -> None:
        log = self.logs[partition]
        log.append(record(partition, len(log), timestamp))

    def take(self, partition: TopicPartition) -> None:
        """The group assigns it; the owner before has returned what comes to two records more."""
        if partition in self.owned:
            return
        self.delivered[partition] = min(len(self.logs[partition]), self.delivered[partition] + 2)
        self.owned.add(partition)
        self.subscription.set_assignment(self.owned, self.gated)
        self.state.seek(partition, self.delivered[partition])
        self.time[partition] = -1
        self.empty_since[partition] = self.clock.now
        self.tells = {"assigned": self.tells.get("assigned", frozenset()) | {partition}}

    def revoke(self, partition: TopicPartition) -> None:
        if partition in self.owned:
            self.tells = {
                "to_be_revoked": self.tells.get("to_be_revoked", frozenset()) | {partition}
            }

    def leave(self, partition: TopicPartition) -> None:
        if partition not in self.owned:
            return
        # Invariant 4: what the group goes on from.
        assert self.subscription.position(partition) == self.delivered[partition]
        self.owned.discard(partition)
        self.subscription.set_assignment(self.owned, self.gated - {partition})
        self.forget(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.owned - self.gated:
            offset = min(offset, len(self.logs[partition]))
            self.state.seek(partition, offset)
            self.subscription.ahead.forget([partition])
            self.delivered[partition] = offset
            self.forget(partition)

    def pause(self, partition: TopicPartition) -> None:
        if partition not in self.owned:
            return
        paused = self.state.assignment[partition].paused
        (self.state.resume if paused else self.state.pause)(partition)
        self.subscription.ahead.dirty = True

    def notice(self) -> None:
        """A poll begins: of what was paused and resumed since the last one, nobody knows."""
        paused = self.subscription.paused()
        for partition in paused ^ self.noticed:
            self.lag.pop(partition, None)
            self.zero_since.pop(partition, None)
            self.empty_since[partition] = self.clock.now
        self.noticed = paused

    def forget(self, partition: TopicPartition) -> None:
        self.buffered[partition] = []
        self.time[partition] = -1
        self.lag.pop(partition, None)
        self.zero_since.pop(partition, None)
        self.empty_since[partition] = self.clock.now

    # -- the rule ---------------------------------------------------------------------------------

    def group_of(self, partition: TopicPartition) -> int:
        return partition.partition % 2 if self.two_groups else 0

    def groups(self) -> list[list[TopicPartition]]:
        active = self.owned - self.gated - self.subscription.paused()
        names = {self.group_of(p) for p in active}
        return [[p for p in sorted(active) if self.group_of(p) == name] for name in names]

    def ready_at(self, group: list[TopicPartition]) -> float:
        """From when on a record of the group may be returned, if nothing else happens."""
        if not any(self.buffered[p] for p in group):
            return math.inf
        at = -math.inf
        for partition in group:
            if self.idle_ms < 0 or self.buffered[partition]:
                continue
            if self.lag.get(partition) != 0:
                return math.inf
            since = max(self.zero_since[partition], self.empty_since[partition])
            at = max(at, since + self.idle_ms / 1000)
        return at

    def may_return(self, group: list[TopicPartition]) -> bool:
        return self.ready_at(group) <= self.clock.now

    def head(self, partition: TopicPartition) -> tuple[int, TopicPartition]:
        stamp = self.buffered[partition][0].timestamp
        return (stamp if stamp >= 0 else self.time[partition]), partition

    def returned(self, partition: TopicPartition, offset: int) -> None:
        group = next(each for each in self.groups() if partition in each)
        assert self.may_return(group), "somebody was to be waited for"
        first = min(self.head(p) for p in group if self.buffered[p])
        assert first[1] == partition, "another comes before it"
        assert self.buffered[partition][0].offset == offset == self.delivered[partition]
        self.buffered[partition].pop(0)
        self.delivered[partition] += 1
        self.time[partition] = max(self.time[partition], first[0])
        if not self.buffered[partition]:
            self.empty_since[partition] = self.clock.now


which = st.sampled_from(PARTITIONS)
steps = st.one_of(
    st.tuples(st.just("produce"), which, st.integers(-1, 9)),
    st.tuples(st.just("produce"), which, st.integers(-1, 9)),
    st.tuples(st.just("answer"), which, st.sampled_from([ALL, ALL, ONE, EMPTY])),
    st.tuples(st.just("answer"), which, st.sampled_from([ALL, ALL, ONE, EMPTY])),
    st.tuples(st.just("poll"), st.integers(1, 9), st.sampled_from([0, 10, 120])),
    st.tuples(st.just("poll"), st.integers(1, 9), st.sampled_from([0, 10, 120])),
    st.tuples(st.just("passes"), st.sampled_from([0.01, 0.04, 1.0]), st.none()),
    st.tuples(st.just("take"), which, st.none()),
    st.tuples(st.just("revoke"), which, st.none()),
    st.tuples(st.just("lose"), which, st.none()),
    st.tuples(st.just("seek"), which, st.integers(0, 9)),
    st.tuples(st.just("pause"), which, st.none()),
)


BUFFERED_AND_REVOKED = [
    ("produce", PARTITIONS[0], 1),
    ("answer", PARTITIONS[0], ALL),
    ("poll", 1, 10),
    ("poll", 1, 10),
    ("revoke", PARTITIONS[0], None),
    ("poll", 1, 10),
    ("poll", 1, 10),
]


PAUSED_AND_RESUMED_BETWEEN_POLLS = [
    ("produce", PARTITIONS[2], 0),
    ("answer", PARTITIONS[0], ALL),
    ("poll", 1, 0),
    ("passes", 0.01, None),
    ("pause", PARTITIONS[0], None),
]


@pytest.mark.parametrize("form", ["records", "arrow"])
@settings(max_examples=histories(500), phases=set(Phase) - {Phase.explain})
@given(
    history=st.lists(steps, max_size=60),
    idle_ms=st.sampled_from([-1, 0, 50]),
    two_groups=st.booleans(),
)
@example(history=BUFFERED_AND_REVOKED, idle_ms=50, two_groups=False)
@example(history=PAUSED_AND_RESUMED_BETWEEN_POLLS, idle_ms=50, two_groups=True)
def test_every_history(
    form: str, history: list[tuple[str, Any, Any]], idle_ms: int, two_groups: bool
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ordered_records, "time", clock)
        model: Any = Model(clock, idle_ms, two_groups)
        ordered = TimestampOrderedRecords(model, idle_ms, model.group_of, BOUND)
        for partition in PARTITIONS[:3]:
            model.take(partition)
        for what, subject, how in history:
            if what == "produce":
                model.produce(subject, how)
            elif what == "answer":
                model.answers[subject] = how
            elif what == "poll":
                poll(model, ordered, form, subject, how)
            elif what == "passes":
                clock.now += subject
            elif what == "take":
                model.take(subject)
            elif what == "revoke":
                model.revoke(subject)
            elif what == "lose":
                model.leave(subject)
            elif what == "seek":
                model.seek(subject, how)
            else:
                model.pause(subject)
        finish(model, ordered, form)


def poll(
    model: Any, ordered: TimestampOrderedRecords, form: str, number: int, timeout_ms: float
) -> int:
    ends_at = model.clock.now + timeout_ms / 1000
    model.notice()
    if form == "arrow":
        table = ordered.poll_arrow(timeout_ms, number).records
        found = [
            (TopicPartition(r["topic"], r["partition"]), r["offset"]) for r in table.to_pylist()
        ]
    else:
        records = ordered.poll(timeout_ms, number).records
        found = [(TopicPartition(r.topic, r.partition), r.offset) for r in records]
    assert len(found) <= number
    assert model.clock.now <= ends_at + 1e-6
    for partition, offset in found:
        model.returned(partition, offset)
    for partition in model.owned - model.gated:
        assert model.subscription.position(partition) == model.delivered[partition]
        assert ordered.buffered(partition) == len(model.buffered[partition])
    if len(found) < number:
        assert not any(map(model.may_return, model.groups())), "more could have been returned"
    return len(found)


def finish(model: Any, ordered: TimestampOrderedRecords, form: str) -> None:
    """With a broker that answers, everything comes in the end."""
    for partition in PARTITIONS:
        model.take(partition)
        if model.state.assignment[partition].paused:
            model.pause(partition)
    for _ in range(300):
        for partition in PARTITIONS:
            model.take(partition)
            model.answers[partition] = ALL
        poll(model, ordered, form, 5, 100)
        if all(model.delivered[p] == len(model.logs[p]) for p in PARTITIONS):
            return
    raise AssertionError("not everything came")


@pytest.mark.parametrize("form", ["records", "arrow"])
@pytest.mark.parametrize("how", ["polls went back", "it is another topic"])
def test_what_is_buffered_of_a_log_that_is_no_more_is_not_handed_out(form: str, how: str) -> None:
    clock, (p, q, *_) = Clock(), PARTITIONS
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ordered_records, "time", clock)
        model: Any = Model(clock, 1_000, two_groups=False)
        ordered = TimestampOrderedRecords(model, 1_000)
        for partition in (p, q):
            model.take(partition)
        for stamp in (1, 2, 3):
            model.produce(p, stamp)
        model.answers[p] = ALL
        poll(model, ordered, form, 4, 0)
        assert poll(model, ordered, form, 4, 0) == 0
        assert ordered.buffered(p) == 3
        model.logs[p].clear()
        model.produce(p, 7)
        if how == "polls went back":
            model.state.assignment[p].position = OffsetAndMetadata(0, "", -1)
        else:
            model.truncations.bound = lambda partition: "another"
        model.forget(p)
        poll(model, ordered, form, 4, 0)
        assert ordered.buffered(p) == 0
        assert model.subscription.position(p) == 0
        model.answers |= {p: ALL, q: EMPTY}
        poll(model, ordered, form, 4, 0)
        clock.now += 2
        assert poll(model, ordered, form, 4, 0) == 1
