"""What a commit says of a partition, against a plain set of integers; and as its metadata.

How a partition comes to owe it while it is owned: test_partition_remaining.py, by the same model.
"""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model_partition import PartitionModel
from model_partition import unprocessed as unprocessed_below

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Decoded, Remaining, Told
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap

#: Offsets of the model. What lies at the horizon and beyond is always unprocessed.
HORIZON = 40

offsets = st.integers(0, HORIZON)
spans = st.tuples(offsets, offsets).map(lambda ends: (min(ends), max(ends)))


def unprocessed(remaining: Remaining) -> set[int]:
    return unprocessed_below(remaining, HORIZON)


def from_model(owed: set[int], live: int) -> Remaining:
    return Remaining.of([(o, o + 1) for o in owed if o < live], live)


@st.composite
def remainings(draw: st.DrawFn) -> Remaining:
    live = draw(offsets)
    return from_model(draw(st.sets(st.integers(0, HORIZON - 1))), live)


class Partition(RuleBasedStateMachine):
    """What happens to a partition, to the code and to a set of integers.

    Reading and processing happen to the model alone: the code is told what remains of it.
    """

    @initialize(start=offsets)
    def assigned(self, start: int) -> None:
        self.remaining = Remaining(start)
        self.model = PartitionModel(start, HORIZON)

    @rule(span=spans, data=st.data())
    def hand_out(self, span: tuple[int, int], data: st.DataObject) -> None:
        start, end = span
        found = data.draw(st.sets(st.sampled_from(range(start, end)))) if start < end else set()
        self.model.hand_out(start, end, found)
        self.remaining = self.model.remaining()

    @rule(span=spans)
    def hand_out_whatever_exists(self, span: tuple[int, int]) -> None:
        self.model.hand_out(*span)
        self.remaining = self.model.remaining()

    @rule(end=offsets)
    def set_a_backlog_aside(self, end: int) -> None:
        self.model.hand_out(self.remaining.live, end)
        self.remaining = self.model.remaining()

    @rule(span=spans)
    def process(self, span: tuple[int, int]) -> None:
        self.model.process(*span)
        self.remaining = self.model.remaining()

    @rule(offset=offsets)
    def start_over(self, offset: int) -> None:
        self.remaining = self.remaining.start_over(offset)
        self.model.start_over(offset)

    @rule(log_start=offsets)
    def trim(self, log_start: int) -> None:
        lost = self.remaining.count(log_start)
        self.remaining = self.remaining.trim(log_start)
        assert lost == len([o for o in self.model.owed if o < log_start])
        self.model.trim(log_start)

    @rule(other=remainings())
    def merge(self, other: Remaining) -> None:
        merged = self.remaining.merge(other)
        assert merged == other.merge(self.remaining)
        self.model.owed &= unprocessed(other)
        self.model.live = max(self.model.live, other.live)
        self.remaining = merged

    @rule(gaps=st.integers(0, 4))
    def close_spaces(self, gaps: int) -> None:
        closed = self.remaining.close_spaces(gaps)
        assert len(closed.gaps) <= gaps or closed == self.remaining
        self.remaining = closed
        assert unprocessed(closed) >= self.model.owed
        self.model.owed, self.model.live = unprocessed(closed), closed.live

    @rule(limit=st.sampled_from([0, 20, 24, 26, 4096]))
    def crash(self, limit: int) -> None:
        committed, metadata = self.remaining.committed(), self.remaining.encode(limit)
        assert len(metadata) <= limit
        self.remaining, told, _ = Remaining.decode(committed, metadata)
        assert told is (Told.GAPS if metadata else Told.NOTHING)
        if limit == 4096:
            assert unprocessed(self.remaining) == self.model.owed
        assert unprocessed(self.remaining) >= self.model.owed
        self.model.owed, self.model.live = unprocessed(self.remaining), self.remaining.live

    @invariant()
    def the_set_is_the_model(self) -> None:
        assert unprocessed(self.remaining) == self.model.owed
        assert self.remaining.live == self.model.live
        assert self.remaining.committed() == self.model.committed()

    @rule()
    def questions_are_answered_as_by_a_set(self) -> None:
        owed = self.model.owed
        for offset in range(HORIZON):
            assert (offset in self.remaining) == (offset in owed)
            following = [o for o in owed if o >= offset]
            assert self.remaining.next_from(offset) == min(following, default=HORIZON)
            assert self.remaining.count(offset) == len([o for o in owed if o < offset])


TestPartition = Partition.TestCase


@given(remainings(), spans)
@example(Remaining(13, (Gap(11, 13),)), (12, 12))
def test_what_lies_between_two_offsets_is_told_in_order_and_without_touching(
    remaining: Remaining, span: tuple[int, int]
) -> None:
    found = remaining.between(*span)
    told = [o for gap in found for o in range(gap.start, gap.end)]
    assert told == sorted(unprocessed(remaining) & set(range(*span)))
    assert Remaining(span[1], found).gaps == found, "the invariants of gaps"


@given(st.lists(spans), offsets)
def test_any_ranges_make_a_set(ranges: list[tuple[int, int]], live: int) -> None:
    made = Remaining.of(ranges, live)
    assert unprocessed(made) == set(range(live, HORIZON)).union(*(range(*span) for span in ranges))
    assert made.live == live


@given(remainings(), st.integers(1, 9))
def test_the_fewest_offsets_are_repeated_for_so_few_gaps(remaining: Remaining, spared: int) -> None:
    """Of all ways to close spaces, by trying each."""
    gaps = max(0, len(remaining.gaps) - spared)
    starts = [gap.start for gap in remaining.gaps] + [remaining.live]
    spaces = [set(range(g.end, s)) for g, s in zip(remaining.gaps, starts[1:], strict=True)]
    fewest = min(
        sum(len(space) for space in closed)
        for closed in combinations(spaces, min(spared, len(spaces)))
    )
    closed = remaining.close_spaces(gaps)
    assert len(closed.gaps) == gaps
    assert len(unprocessed(closed) - unprocessed(remaining)) == fewest


@pytest.mark.parametrize(
    ("live", "gaps"),
    [
        (10, [(5, 5)]),
        (10, [(7, 5)]),
        (10, [(5, 7), (2, 3)]),
        (10, [(2, 6), (5, 7)]),
        (10, [(2, 5), (5, 7)]),
        (10, [(5, 11)]),
        (10, [(-1, 3)]),
        (-1, []),
    ],
)
def test_what_breaks_an_invariant_is_refused(live: int, gaps: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="invalid gaps below the live position"):
        Remaining(live, tuple(Gap(*gap) for gap in gaps))


def test_it_does_not_change() -> None:
    remaining = Remaining(10)
    with pytest.raises(FrozenInstanceError):
        remaining.live = 11  # type: ignore[misc]
    assert remaining.trim(12) is not remaining
    assert remaining == Remaining(10)


def test_a_partition_that_caught_up_twice() -> None:
    """KIP-333: a failure while live makes a second gap above the first."""
    model = PartitionModel(70, 10_000)
    model.hand_out(70, 4_000)
    assert model.remaining() == Remaining(4_000, (Gap(70, 4_000),))
    model.hand_out(4_000, 4_100, range(4_000, 4_100))
    model.process(4_000, 4_090)
    model.process(70, 100)
    remaining = model.remaining()
    assert remaining == Remaining(4_100, (Gap(100, 4_000), Gap(4_090, 4_100)))
    after_a_crash = Remaining.decode(remaining.committed(), remaining.encode()).remaining
    assert after_a_crash == Remaining(4_090, (Gap(100, 4_000),))
    model.owed, model.live = unprocessed_below(after_a_crash, 10_000), after_a_crash.live
    model.hand_out(4_090, 9_000)
    assert model.remaining().gaps == (Gap(100, 4_000), Gap(4_090, 9_000))
    assert after_a_crash.count(9_000) == 3_900 + 4_910


# -- the metadata of a commit -------------------------------------------------------------------

far = st.integers(0, 2**40) | st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(far, far), min_size=1), far, st.text())
def test_what_is_encoded_is_decoded(ranges: list[tuple[int, int]], live: int, bound: str) -> None:
    remaining = Remaining.of([(min(span), max(span)) for span in ranges], live)
    metadata = remaining.encode(10**6, bound)
    decoded, told, _ = Remaining.decode(remaining.committed(), metadata, bound)
    end = max(live, *(max(span) for span in ranges)) + 1
    assert decoded.between(0, end) == remaining.between(0, end)
    assert told is (Told.GAPS if metadata else Told.NOTHING)


SOME = Remaining(4_000, (Gap(70, 120), Gap(300, 310)))


def test_the_metadata_stay_as_they_are() -> None:
    """Other versions of this package read them."""
    assert SOME.encode(bound_to="orders") == "unprocessed/1:WCE0MwyTms0RBpA"
    assert Remaining.decode(70, "unprocessed/1:WCE0MwyTms0RBpA", "orders") == Decoded(
        SOME, Told.GAPS
    )


def test_any_tool_can_keep_them() -> None:
    metadata = SOME.encode(leader_epoch=7)
    assert metadata.isascii()
    assert not set(metadata) - set(
        "unprocessed/1:.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    )


@pytest.mark.parametrize("live", [0, 70, 2**63 - 1])
def test_without_gaps_there_is_nothing_to_tell(live: int) -> None:
    assert Remaining(live).encode() == ""
    handed_out = Remaining(live + 5, (Gap(live, live + 5),))
    assert handed_out.encode() == "", "in order, as it was before"


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "mine",
        "5f2c0a3e-consumer-1",  # of librdkafka's applications, a name of the host or the like
        "bAAMAAQI=",  # parallel-consumer's
        "unprocessed",
        "unprocessed/:AAAA",
        "unprocessed/0:AAAA",
        "unprocessed/x:AAAA",
        " unprocessed/1:AAAA",
        "unprocessed/" + "9" * 5_000 + ":",
        "\x00\udcff",
    ],
)
def test_foreign_metadata_tell_nothing(metadata: str | None) -> None:
    assert Remaining.decode(70, metadata) == Decoded(Remaining(70), Told.NOTHING)


@given(st.text())
def test_no_text_is_mistaken_for_gaps(text: str) -> None:
    for metadata in (text, f"unprocessed/1:{text}"):
        remaining, told, _ = Remaining.decode(70, metadata)
        assert remaining == Remaining(70)
        assert told is not Told.GAPS


@given(remainings(), st.data())
def test_a_damaged_character_is_noticed(remaining: Remaining, data: st.DataObject) -> None:
    model = PartitionModel(0, 60)
    model.owed, model.live = unprocessed_below(remaining, 60), remaining.live
    model.process(50, 60)
    metadata = model.remaining().encode()
    at = data.draw(st.integers(0, len(metadata) - 1))
    other = data.draw(st.characters(max_codepoint=127).filter(lambda c: c != metadata[at]))
    changed = metadata[:at] + other + metadata[at + 1 :]
    decoded, told, _ = Remaining.decode(remaining.committed(), changed)
    if told is Told.GAPS:  # of the last character base64 ignores some bits
        assert at == len(metadata) - 1
        assert decoded.encode() == metadata
    else:
        assert decoded == Remaining(remaining.committed())


@pytest.mark.parametrize("offset", [0, 69, 71, 120, 4_000])
def test_metadata_that_a_reset_left_behind_hide_no_record(offset: int) -> None:
    """``--reset-offsets`` writes none, but other tools may keep what is there."""
    decoded = Remaining.decode(offset, SOME.encode())
    assert decoded == Decoded(Remaining(offset), Told.ANOTHER_COMMIT)


def test_metadata_of_another_topic_hide_no_record() -> None:
    """A mirrored group has the same numbers, and maybe other records."""
    metadata = SOME.encode(bound_to="a topic's id")
    assert Remaining.decode(70, metadata, "another's") == Decoded(
        Remaining(70), Told.ANOTHER_COMMIT
    )
    assert Remaining.decode(70, metadata) == Decoded(Remaining(70), Told.ANOTHER_COMMIT)
    assert Remaining.decode(70, metadata, "a topic's id") == Decoded(SOME, Told.GAPS)


def test_the_leader_epoch_goes_with_them() -> None:
    metadata = SOME.encode(leader_epoch=7)
    assert Remaining.decode(70, metadata) == Decoded(SOME, Told.GAPS, 7)
    assert Remaining.decode(70, metadata.replace(".7", ".8")).told is Told.ANOTHER_COMMIT
    assert Remaining.decode(70, metadata.removesuffix(".7")).told is Told.ANOTHER_COMMIT


@pytest.mark.parametrize("metadata", ["unprocessed/2:", "unprocessed/2:{}", "unprocessed/10:AAAA"])
def test_a_newer_version_tells_that_it_is_one(metadata: str) -> None:
    assert Remaining.decode(70, metadata) == Decoded(Remaining(70), Told.NEWER)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00\x00\x00",
        b"\x00\x08",  # a gap without a space behind it
        b"\xff" * 17,  # cut off within the second number
        b"\xff" * 17 + b"\xf0",  # beyond the highest offset
    ],
)
def test_what_nobody_writes_is_refused_even_with_a_checksum(body: bytes) -> None:
    checksum = zlib.crc32(b"1 70 -1 \x00" + body).to_bytes(4, "big")
    text = base64.urlsafe_b64encode(checksum + body).rstrip(b"=").decode()
    decoded = Remaining.decode(70, f"unprocessed/1:{text}")
    assert decoded == Decoded(Remaining(70), Told.ANOTHER_COMMIT)


def test_of_what_does_not_fit_the_smallest_spaces_are_closed() -> None:
    ranges = [(n * 1_000, n * 1_000 + 300) for n in range(3_000)]
    wide = Remaining.of(ranges, 3_000_000)
    narrow = Remaining.of([(0, 100), (110, 300), *ranges[1:]], 3_000_000)
    metadata = narrow.encode(4_096)
    assert 4_000 < len(metadata) <= 4_096
    decoded, told, _ = Remaining.decode(0, metadata)
    assert told is Told.GAPS
    assert decoded.merge(narrow).between(0, 3_000_000) == narrow.between(0, 3_000_000)
    assert decoded.gaps[0].start == 0
    assert 105 in decoded, "the smallest space is closed"
    assert len(wide.encode(10**6)) > 4_096


def gaps_of(
    count: int, length: Callable[[random.Random], int], space: Callable[[random.Random], int]
) -> Remaining:
    chance = random.Random(count)
    at, ranges = 1_000_000_000, []
    for _ in range(count):
        end = at + length(chance)
        ranges.append((at, end))
        at = end + space(chance)
    return Remaining.of(ranges, at)


def heads(chance: random.Random) -> int:
    """How often in a row a coin shows the same side."""
    count = 1
    while chance.random() < 0.5:
        count += 1
    return count


def one(_: random.Random) -> int:
    return 1


def about(mean: int) -> Callable[[random.Random], int]:
    return lambda chance: 1 + int(chance.expovariate(1 / mean))


def up_to_a_million(chance: random.Random) -> int:
    return chance.randint(1, 1_000_000)


@pytest.mark.parametrize(
    ("length", "space", "sizes"),
    [
        pytest.param(heads, heads, [22, 29, 97, 770, 7_576], id="half of the records"),
        pytest.param(one, about(20), [22, 33, 142, 1_208, 11_833], id="singles, 20 between"),
        pytest.param(one, about(1_000), [24, 44, 233, 2_148, 21_194], id="singles, 1,000 between"),
        pytest.param(up_to_a_million, up_to_a_million, [29, 90, 718, 6_998, 69_697], id="runs"),
    ],
)
def test_how_large_they_are(
    length: Callable[[random.Random], int], space: Callable[[random.Random], int], sizes: list[int]
) -> None:
    """The docstring of ``encode`` has these numbers."""
    counts = [1, 10, 100, 1_000, 10_000]
    assert [len(gaps_of(n, length, space).encode(10**6)) for n in counts] == sizes


@pytest.mark.parametrize(
    ("length", "space", "fits"),
    [
        (heads, heads, 5_300),
        (one, about(20), 3_400),
        (one, about(1_000), 1_900),
        (up_to_a_million, up_to_a_million, 580),
    ],
)
def test_how_many_gaps_fit_by_default(
    length: Callable[[random.Random], int], space: Callable[[random.Random], int], fits: int
) -> None:
    remaining = gaps_of(fits, length, space)
    assert Remaining.decode(remaining.committed(), remaining.encode()) == Decoded(
        remaining, Told.GAPS
    )
