"""A commit says who made it, and which queries have delivered what lies below."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import (
    Decoded,
    Remaining,
    Told,
    is_ours,
)
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.offsets.origin import (
    Origin,
    Stretch,
    with_origin,
    without_origin,
)
from pyspark_kafka_rebalance.consumer.offsets.set_backs import SetBack
from pyspark_kafka_rebalance.consumer.progress.partition import is_described

OFFSETS = st.integers(0, 2**63 - 1)
NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=16)
BOUND = "a topic's id-0"
LEFT = Remaining(100, (Gap(70, 80),))

THE_ORIGIN = Origin(
    "1f0c9a77",
    17,
    (Stretch("90a1c3e5f7b2d4e6", 0), Stretch("aa11bb22cc33dd44", 4_000)),
)


@st.composite
def origins(draw: st.DrawFn) -> Origin:
    sinces = sorted(draw(st.lists(OFFSETS, min_size=1, max_size=4, unique=True)))
    return Origin(
        draw(NAMES),
        draw(st.integers(0, 10**18 - 1)),
        tuple(Stretch(draw(NAMES), since) for since in sinces),
        tuple(draw(st.lists(set_backs(), max_size=3))),
    )


@st.composite
def set_backs(draw: st.DrawFn) -> SetBack:
    bounds = sorted(draw(st.lists(OFFSETS, min_size=2, max_size=6, unique=True)))
    again = map(Gap, bounds[::2], bounds[1::2])
    return SetBack(draw(NAMES), draw(st.from_regex("[0-9a-f]{8}", fullmatch=True)), tuple(again))


@given(origins(), OFFSETS, st.text(max_size=20))
def test_it_comes_back_as_it_was(origin: Origin, offset: int, bound_to: str) -> None:
    text = origin.encode(offset, 4_096, bound_to)
    assert text.isascii()
    assert Origin.decode(offset, text, bound_to) == origin
    assert Origin.decode(offset, f"{text} unprocessed/1:AAAA", bound_to) == origin


def test_the_form_stays() -> None:
    text = "query/1:e826d9a9.1f0c9a77.17.90a1c3e5f7b2d4e6-0.aa11bb22cc33dd44-4000"
    assert THE_ORIGIN.encode(4_100, 4_096, BOUND) == text
    assert Origin.decode(4_100, text, BOUND) == THE_ORIGIN
    back = SetBack("90a1c3e5f7b2d4e6", "5d0f33c1", (Gap(4_000, 4_500), Gap(5_000, 5_200)))
    followed = replace(THE_ORIGIN, set_backs=(back,)).encode(4_100, 4_096, BOUND)
    assert ".17~90a1c3e5f7b2d4e6-5d0f33c1-4000-4500-5000-5200.90a1c3" in followed


def test_a_commit_of_one_query_takes_few_bytes() -> None:
    """One commit may hold 10,000 partitions."""
    alone = Origin("1f0c9a77", 100_000, (Stretch("90a1c3e5f7b2d4e6", 1_000_000_000),))
    assert len(alone.encode(10**12, 4_096, BOUND)) <= 62


@given(origins(), OFFSETS, OFFSETS)
def test_it_speaks_for_its_own_commit_only(origin: Origin, offset: int, other: int) -> None:
    text = origin.encode(offset, 4_096, BOUND)
    if other != offset:  # a tool has moved the offset and kept the metadata
        assert Origin.decode(other, text, BOUND) is None
    assert Origin.decode(offset, text, "the id of the topic created anew-0") is None


@pytest.mark.parametrize(
    "metadata",
    [
        *(None, "", "of the application", "query/1:", "query/1:AAAA.b.c", "unprocessed/1:AAAA"),
        *("query/2:x", "query/x:y", "query/" + "9" * 5_000 + ":", "query/1:00000000.r.1.q-0"),
    ],
)
def test_what_says_nobody_is_nobodys(metadata: str | None) -> None:
    assert Origin.decode(4_100, metadata, BOUND) is None


@given(st.text(max_size=80))
def test_no_metadata_are_an_error(metadata: str) -> None:
    for text in (metadata, f"query/1:{metadata}"):
        Origin.decode(7, text, BOUND)
        Remaining.decode(7, text, BOUND)


def test_if_there_is_little_room_the_newest_stretch_is_kept() -> None:
    whole = THE_ORIGIN.encode(4_100, 4_096, BOUND)
    shorter = THE_ORIGIN.encode(4_100, len(whole) - 1, BOUND)
    found = Origin.decode(4_100, shorter, BOUND)
    assert found is not None
    assert found.stretches == THE_ORIGIN.stretches[1:]
    assert THE_ORIGIN.encode(4_100, len(shorter) - 1, BOUND) == ""


def test_gaps_are_read_behind_it() -> None:
    origin = THE_ORIGIN.encode(70, 4_096, BOUND)
    gaps = LEFT.encode(bound_to=BOUND)
    assert with_origin(origin, gaps) == f"{origin} {gaps}"
    assert Remaining.decode(70, f"{origin} {gaps}", BOUND) == Decoded(LEFT, Told.GAPS)
    assert Remaining.decode(70, origin, BOUND) == Decoded(Remaining(70), Told.NOTHING)


def test_an_origin_takes_the_place_of_the_one_before() -> None:
    origin, gaps = THE_ORIGIN.encode(70, 4_096, BOUND), LEFT.encode(bound_to=BOUND)
    before = f"query/1:00000000.r.1.q-0 {gaps}"
    assert with_origin(origin, before) == f"{origin} {gaps}"
    assert with_origin("", before) == without_origin(before) == gaps
    assert with_origin("", "") == ""


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        ("query/1:x", True),
        ("query/1:x unprocessed/1:AAAA", True),
        ("query/9:x", False),
        ("query/9:x unprocessed/9:AAAA", False),
        ("query/1:x of the application", False),
        ("of the application", False),
        ("", False),
    ],
)
def test_the_consumer_replaces_only_what_this_package_has_written(
    metadata: str, ours: bool
) -> None:
    from kafka.structs import OffsetAndMetadata

    assert is_ours(metadata) == ours
    assert is_described(OffsetAndMetadata(7, metadata, -1)) == (bool(metadata) and not ours)


def test_who_has_delivered_what() -> None:
    a, b = "90a1c3e5f7b2d4e6", "aa11bb22cc33dd44"
    origin = Origin("r", 1, (Stretch(a, 10), Stretch(b, 40), Stretch(a, 70)))
    assert origin.query == a
    assert origin.delivered_by(a, 100) == ((10, 40), (70, 100))
    assert origin.delivered_by(b, 100) == ((40, 70),)
    assert origin.delivered_by(a, 70) == ((10, 40),)
    assert origin.delivered_by("c", 100) == ()
