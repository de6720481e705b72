"""Which rows of a batch are marked lost, and how long that is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.others.foreign_ranges import (
    AT_MOST_S,
    JOIN_S,
    STILL_S,
    Look,
    Standing,
    marked_below,
    undecided,
    wait_for_owners,
)

P = TopicPartition("t", 0)
RANGES = {P: OffsetRange("t", 0, 100, 150)}
READS = {P: (RANGES[P],)}
SESSION_S = 10.0


@pytest.mark.parametrize(
    ("is_own", "committed", "is_open", "below"),
    [
        (True, None, False, None),
        (True, 100, False, None),
        (True, 120, False, 120),  # another had it in between
        (True, 999, False, 150),
        (False, None, True, None),
        (False, 100, True, None),
        (False, 120, True, 120),  # its owner may stop here
        (False, 150, False, 150),
        (False, 999, False, 150),
    ],
)
def test_a_row_is_marked_only_if_somebody_has_committed_it(
    is_own: bool, committed: int | None, is_open: bool, below: int | None
) -> None:
    standings = {P: Standing(is_own, committed)}
    assert undecided(READS, standings) == ({P} if is_open else set())
    assert marked_below(RANGES, standings) == ({} if below is None else {P: below})


class Time:
    """A clock that only waiting moves on."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.waited = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self) -> None:
        self.now += 1.0
        self.waited += 1.0


def waiting(
    looks: Iterable[Look], time: Time, session_s: Callable[[], float] = lambda: SESSION_S
) -> dict[TopicPartition, int]:
    looking = iter(looks)
    last: list[Look] = []

    def look() -> Look:
        last[:] = [next(looking, last[0] if last else Look(True, {}))]
        return last[0]

    standings = wait_for_owners(READS, look, time.wait, session_s, time)
    return marked_below(RANGES, standings)


def others(committed: int | None, joined: bool = True) -> Look:
    return Look(joined, {P: Standing(False, committed)})


def test_what_is_the_querys_own_is_waited_for_by_nobody() -> None:
    time = Time()
    assert waiting([Look(True, {P: Standing(True, 100)})], time) == {}
    assert time.waited == 0


def test_an_owner_that_goes_on_is_waited_for_until_it_is_through() -> None:
    time = Time()
    looks = [others(100 + n // 4) for n in range(4 * 50 + 1)]
    assert waiting(looks, time) == {P: 150}
    assert time.waited == len(looks) - 1 > STILL_S


def test_an_owner_that_gives_the_partition_up_leaves_the_rest_to_the_replay() -> None:
    looks = [
        others(None, joined=False),
        others(100),
        others(120),
        Look(True, {P: Standing(True, 130)}),
    ]
    assert waiting(looks, Time()) == {P: 130}


@pytest.mark.parametrize(
    ("looks", "patience_s"),
    [
        ([others(120)], SESSION_S + STILL_S),
        ([others(110)] * 5 + [others(120)], SESSION_S + STILL_S),
        ([others(None, joined=False)], SESSION_S + JOIN_S),
        # As a JoinGroup that is held until the dead are out: their session is waited for once.
        ([others(None, joined=False)] * 20 + [others(120)], 20 + STILL_S),
    ],
)
def test_in_the_end_rows_come_twice_rather_than_not_at_all(
    looks: list[Look], patience_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """As where two queries replay what the other has by now."""
    time = Time()
    below = waiting(looks, time)
    assert below == marked_below(RANGES, looks[-1].standings)
    assert below.get(P, 0) <= 120, "nobody has committed the rest"
    assert time.waited == patience_s
    assert "may come twice: t-0" in caplog.text


def test_an_owner_that_hardly_goes_on_is_not_waited_for_for_ever() -> None:
    time = Time()
    ranges = {P: OffsetRange("t", 0, 0, 10**6)}
    reads = {P: (ranges[P],)}
    standings = wait_for_owners(
        reads, lambda: others(int(time.now)), time.wait, lambda: SESSION_S, time
    )
    below = marked_below(ranges, standings)
    assert time.waited == SESSION_S + AT_MOST_S
    assert below == {P: int(time.now)}


@pytest.mark.parametrize("session_s", [STILL_S + 5, 3 * STILL_S])
@pytest.mark.parametrize("batch_s", [1, STILL_S - 1])
def test_what_a_dead_member_keeps_for_its_session_is_waited_for(
    session_s: float, batch_s: float
) -> None:
    """Joining does not wait for the dead in KIP-848: the replay came without the mark, and twice.

    The next owner gets the partition when the session ends, and commits its first batch then.
    """
    time = Time()
    looks = [others(100)] * int(session_s + batch_s) + [others(150)]
    assert waiting(looks, time, lambda: session_s) == {P: 150}


def test_the_session_is_the_brokers_once_a_member_has_joined() -> None:
    time, session_s = Time(), 100.0
    looks = [others(None, joined=False)] * 3 + [others(100)] * 110 + [others(150)]

    def known_s() -> float:
        return session_s if time.waited > 3 else SESSION_S

    assert waiting(looks, time, known_s) == {P: 150}


def test_what_ends_the_membership_ends_the_wait() -> None:
    def fail() -> None:
        raise RuntimeError("in the pump")

    with pytest.raises(RuntimeError, match="in the pump"):
        wait_for_owners(READS, lambda: others(100), fail, lambda: SESSION_S, Time())


def catching_up(gaps: list[tuple[int, int]], live: int) -> Look:
    """Another query has the partition, and reads gaps beside the live records (KIP-333)."""
    known = Remaining.of(gaps, live)
    return Look(True, {P: Standing(False, known.committed(), known)})


def owner_reading(a_second: float, lowest: int) -> Callable[[float], Look]:
    """One that reads a gap of so many offsets first, and then another, which is waited for."""

    def look(waited: float) -> Look:
        reached = int(waited * a_second)
        beyond = max(0, reached - lowest)
        gaps = [(reached, lowest), (1_000_000 + beyond, 1_000_200)]
        return catching_up([gap for gap in gaps if gap[0] < gap[1]], 2_000_000 + int(waited))

    return look


FAR = {P: (OffsetRange("t", 0, 1_000_100, 1_000_150),)}


@pytest.mark.parametrize(
    ("a_second", "lowest", "waited_s"),
    [
        (0, 1_000, SESSION_S + STILL_S),  # it may be dead
        (0.25, 89, None),
        (1_000, 900_000, None),
    ],
)
def test_what_lies_behind_another_gap_is_not_waited_for_while_that_is_read(
    a_second: float, lowest: int, waited_s: float | None
) -> None:
    """A restart stood still for a session and half a minute, its live records too."""
    time, look = Time(), owner_reading(a_second, lowest)
    standings = wait_for_owners(FAR, lambda: look(time.waited), time.wait, lambda: SESSION_S, time)
    assert not standings[P].has_all_of(FAR[P])
    if waited_s is None:
        assert time.waited < SESSION_S + STILL_S / 2
    else:
        assert time.waited == waited_s


@pytest.mark.parametrize("a_second", [100, 1_000])
def test_what_lies_behind_a_gap_that_is_soon_read_is_waited_for(a_second: int) -> None:
    time, look = Time(), owner_reading(a_second, int(a_second * (SESSION_S + STILL_S - 5)))
    standings = wait_for_owners(FAR, lambda: look(time.waited), time.wait, lambda: SESSION_S, time)
    assert standings[P].has_all_of(FAR[P])


def test_an_owner_that_takes_the_place_of_a_slow_one_is_watched_anew() -> None:
    time = Time()
    first, second = owner_reading(1, 100_000), owner_reading(0, 100_000)

    def look() -> Look:
        if time.waited < 4:
            return first(time.waited)
        return second(0) if time.waited < 20 else catching_up([], 2_000_000)

    standings = wait_for_owners(FAR, look, time.wait, lambda: SESSION_S, time)
    assert standings[P].has_all_of(FAR[P])


@pytest.mark.parametrize(
    "after",
    [
        lambda reached: catching_up([(reached, 150)], live=500),
        lambda reached: catching_up([(0, 10)], live=80 + reached),
        lambda reached: catching_up([(reached, 90), (120, 150 - reached // 3)], live=500),
    ],
    ids=["in the lowest gap", "live", "the gap itself"],
)
def test_an_owner_that_comes_nearer_is_waited_for(after: Callable[[int], Look]) -> None:
    time = Time()
    standings = wait_for_owners(
        READS, lambda: after(int(time.waited) // 2), time.wait, lambda: SESSION_S, time
    )
    assert standings[P].has_all_of(READS[P])
    assert time.waited > SESSION_S + STILL_S


GAPS = Remaining(150, (Gap(10, 20), Gap(120, 130)))


@pytest.mark.parametrize(
    ("reads", "some", "everything"),
    [
        ([(100, 120)], True, True),
        ([(120, 130)], False, False),
        ([(100, 130)], True, False),
        ([(0, 10), (100, 120)], True, True),
        ([(10, 15), (150, 160)], False, False),
        ([(10, 15), (140, 160)], True, False),
    ],
)
def test_with_gaps_the_group_has_what_it_is_not_owed(
    reads: list[tuple[int, int]], some: bool, everything: bool
) -> None:
    pieces = tuple(OffsetRange("t", 0, *bounds) for bounds in reads)
    standing = Standing(False, 10, GAPS)
    assert standing.has_any_of(pieces) == some
    assert standing.has_all_of(pieces) == everything
    assert undecided({P: pieces}, {P: standing}) == (set() if everything else {P})
    assert standing.owed is GAPS
    assert Standing(False, 10).owed == Remaining(10)
    assert Standing(False, None).owed is None
