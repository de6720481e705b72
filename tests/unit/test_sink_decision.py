"""What becomes of a sink's batch: single cases, and random histories beside a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.sink.once.decision import (
    BatchAtHand,
    Decision,
    decide,
    is_written_already,
    may_take_over,
    refuse_another_cluster,
)
from pyspark_kafka_rebalance.sink.once.fenced_writer import timeout_ms_for
from pyspark_kafka_rebalance.sink.once.marker import Marker, MarkerFormatError, parse_marker
from pyspark_kafka_rebalance.source.door.snapshot import Snapshot, State

AT_HAND = BatchAtHand("q", 5, "five", "run-1", follows_group=True, is_stateful=False)
WRITTEN = Marker(4, "four", "run-1", "run-1", "host", 1)
HERE = TopicPartition("orders", 0)


def source(state: State) -> Snapshot:
    lost = frozenset({HERE}) if state == "lost" else frozenset()
    ranges = {HERE: (OffsetRange("orders", 0, 3, 8),)}
    return Snapshot("run", "group", None, state, (), ranges, lost, True)


NOTHING_TO_READ = replace(source("held"), ranges={})


OF_FILES = replace(AT_HAND, follows_group=False)
STATEFUL = replace(AT_HAND, is_stateful=True)


def test_the_next_batch_is_written() -> None:
    assert decide(AT_HAND, WRITTEN, [source("held")]) is Decision.WRITE
    assert decide(OF_FILES, WRITTEN, []) is Decision.WRITE
    assert decide(OF_FILES, None, []) is Decision.WRITE


def test_a_written_batch_is_left_alone_whatever_its_sources_say() -> None:
    marker = replace(WRITTEN, batch=5, digest="five")
    for state in ("held", "lost", "decided"):
        assert decide(AT_HAND, marker, [source(state)]) is Decision.SKIP
    assert decide(OF_FILES, marker, []) is Decision.SKIP


def test_the_group_tells_what_is_written_where_the_marker_is_gone() -> None:
    assert decide(AT_HAND, None, [source("decided"), source("decided")]) is Decision.SKIP


def test_a_source_with_nothing_to_read_says_nothing() -> None:
    assert decide(AT_HAND, None, [source("decided"), NOTHING_TO_READ]) is Decision.SKIP
    assert decide(AT_HAND, None, [source("lost"), NOTHING_TO_READ]) is Decision.DROP
    assert decide(AT_HAND, WRITTEN, [NOTHING_TO_READ]) is Decision.WRITE


def test_a_group_on_another_cluster_is_refused() -> None:
    here, unknown = replace(source("held"), cluster_id="east"), source("held")
    by_hand = replace(source("held"), cluster_id="west", fenced=False)
    refuse_another_cluster("q", [here, unknown, by_hand], "east")
    refuse_another_cluster("q", [here], None)
    with pytest.raises(KafkaRebalanceError, match=r"'group' is on cluster east.* cluster west,"):
        refuse_another_cluster("q", [unknown, here], "west")


def test_what_was_lost_is_dropped_where_the_group_tells_the_positions() -> None:
    assert decide(AT_HAND, WRITTEN, [source("held"), source("lost")]) is Decision.DROP


@pytest.mark.parametrize("at_hand", [OF_FILES, STATEFUL])
def test_otherwise_a_loss_fails_the_query_and_names_the_partition(at_hand: BatchAtHand) -> None:
    with pytest.raises(KafkaRebalanceError, match=r"orders-0.*Restart the query"):
        decide(at_hand, WRITTEN, [source("lost")])


@pytest.mark.parametrize("batch", [5, 9])
def test_an_older_checkpoint_is_refused_where_the_group_does_not_tell(batch: int) -> None:
    marker = replace(WRITTEN, batch=batch)
    for at_hand in (OF_FILES, STATEFUL):
        with pytest.raises(KafkaRebalanceError, match="checkpoint is older than its output"):
            decide(at_hand, marker, [])
    assert decide(AT_HAND, marker, [source("held")]) is Decision.WRITE


def test_a_run_takes_over_once() -> None:
    assert may_take_over("q", "run-2", WRITTEN, False)
    assert may_take_over("q", "run-2", None, False)
    assert may_take_over("q", "run-2", None, True)  # somebody has deleted the topic
    assert not may_take_over("q", "run-1", WRITTEN, True)
    assert not may_take_over("q", "run-1", WRITTEN, False)  # it died before that was noted


def test_a_run_that_was_replaced_names_the_other() -> None:
    other = replace(WRITTEN, run="run-2", host="etl-7", pid=4711)
    with pytest.raises(KafkaRebalanceError, match="run-2 in process 4711 on etl-7"):
        may_take_over("q", "run-1", other, True)
    # A run that has not owned it yet is the newer one.
    assert may_take_over("q", "run-1", other, False)


def test_a_write_of_foreach_batch_is_told_by_its_number() -> None:
    assert not is_written_already("q", 5, None)
    assert not is_written_already("q", 5, WRITTEN)
    assert is_written_already("q", 4, WRITTEN)
    with pytest.raises(KafkaRebalanceError, match="written up to batch 4, so its checkpoint"):
        is_written_already("q", 3, WRITTEN)


@pytest.mark.parametrize(
    ("megabytes", "seconds"),
    [(0, 10), (1, 20), (50, 20), (51, 40), (3_000, 640), (3_500, 900), (5_000, 1_010)],
)
def test_a_transaction_may_take_longer_if_its_output_is_large(megabytes: int, seconds: int) -> None:
    assert timeout_ms_for(megabytes * 1_000_000) == seconds * 1_000


@given(
    st.builds(Marker, st.integers(-1), st.text(), st.text(), st.text(), st.text(), st.integers())
)
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert parse_marker(marker.to_bytes()) == marker


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b'{"version": 1}']
)
def test_a_strange_marker_is_an_error(value: bytes) -> None:
    with pytest.raises(MarkerFormatError):
        parse_marker(value)


@dataclass
class World:
    """A query over a list of rows: its output, its marker, Spark's two logs, and its drivers."""

    output: list[int] = field(default_factory=list)
    marker: Marker | None = None
    offsets: dict[int, int] = field(default_factory=dict)  # the end of each planned batch
    done: int = -1  # the last batch in Spark's commit log
    owned: set[str] = field(default_factory=set)
    run: int = 0

    def start(self) -> None:
        self.run += 1

    def trigger(self, rows: int, stops_at: str) -> None:
        """Plan the next batch, or run the last again; the driver may die at a step."""
        batch, name = self.done + 1, f"run-{self.run}"
        start = self.offsets.get(batch - 1, 0)
        end = self.offsets.setdefault(batch, start + rows)
        at_hand = BatchAtHand("q", batch, f"{end}", name, follows_group=False, is_stateful=False)
        if may_take_over("q", name, self.marker, name in self.owned):
            if stops_at == "claim":
                return self.start()
            before = self.marker or Marker(-1, "", "", "", "", 0)
            self.marker = replace(before, run=name)
            if stops_at == "note":
                return self.start()
            self.owned.add(name)
        if stops_at == "write":
            return self.start()
        if decide(at_hand, self.marker, []) is Decision.WRITE:  # one transaction
            self.output.extend(range(start, end))
            self.marker = Marker(batch, f"{end}", name, name, "", 0)
        if stops_at == "log":
            return self.start()
        self.done = batch
        return None


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["", "", "claim", "note", "write", "log"])),
        max_size=30,
    )
)
def test_every_row_is_written_once_and_in_order_wherever_drivers_die(
    triggers: list[tuple[int, str]],
) -> None:
    world = World()
    world.start()
    for rows, stops_at in triggers:
        world.trigger(rows, stops_at)
    world.trigger(0, "")
    assert world.output == list(range(len(world.output)))
    assert len(world.output) == max(world.offsets.values())


@dataclass
class Log:
    """What Kafka has of a query: its output, its marker, and who may write."""

    output: list[tuple[str, int]] = field(default_factory=list)  # run and row
    marker: Marker | None = None
    epoch: int = 0


@dataclass
class Driver:
    """One driver, step by step: each call does what needs no other request of it before."""

    log: Log
    name: str
    done: int  # by its own copy of Spark's logs; batch n is row n
    epoch: int = -1  # of its producer; -1: it has none
    marker: Marker | None = None  # as it was read when the producer was made
    owned: bool = False
    refused: str = ""

    def step(self) -> None:
        if self.refused:
            return
        try:
            if self.epoch < 0:
                self._fence()
            elif self.marker is None or self.marker.run != self.name:
                self._claim()
            else:
                self._write()
        except KafkaRebalanceError as error:
            self.refused = str(error)

    def _fence(self) -> None:
        if self.owned:
            may_take_over("q", self.name, self.log.marker, True)
        self.log.epoch += 1
        self.epoch, self.marker = self.log.epoch, self.log.marker

    def _claim(self) -> None:
        assert may_take_over("q", self.name, self.marker, self.owned)
        before = self.marker or Marker(-1, "", "", "", "", 0)
        if self._commit(replace(before, run=self.name), []):
            self.owned = True

    def _write(self) -> None:
        batch = self.done + 1
        at_hand = BatchAtHand(
            "q", batch, f"{batch}", self.name, follows_group=False, is_stateful=False
        )
        if decide(at_hand, self.marker, []) is Decision.SKIP or self._commit(
            Marker(batch, f"{batch}", self.name, self.name, "", 0), [(self.name, batch)]
        ):
            self.done = batch

    def _commit(self, marker: Marker, rows: list[tuple[str, int]]) -> bool:
        if self.epoch != self.log.epoch:  # fenced
            self.epoch = -1
            return False
        self.marker = self.log.marker = marker
        self.log.output.extend(rows)
        return True


@settings(deadline=None)
@given(st.integers(0, 4), st.lists(st.booleans(), max_size=40))
def test_of_two_drivers_the_newer_goes_on_and_no_row_is_written_twice(
    behind: int, turns: list[bool]
) -> None:
    """However their steps meet; ``behind``: how old the newer one's checkpoint is."""
    log = Log()
    older = Driver(log, "older", -1)
    for _ in range(6):  # to fence, to claim, and four batches
        older.step()
    newer = Driver(log, "newer", older.done - behind)
    for is_newer in turns:
        (newer if is_newer else older).step()
    rows = [row for _, row in log.output]
    assert rows == list(range(len(rows)))
    runs = [run for run, _ in log.output]
    assert runs == sorted(runs, reverse=True)  # "older" never after "newer"
    for _ in range(8):
        older.step()
        newer.step()
    assert "run newer in process" in older.refused
    # It may write only if the other one has not gone on in the meantime.
    assert not newer.refused or "its checkpoint is older than its output" in newer.refused
