"""What the group's commits are worth to a query whose checkpoint may be older."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import GroupCommit, Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.offsets.origin import Origin, Stretch
from pyspark_kafka_rebalance.source.group.owned.own_commits import OwnCommits, token_of
from pyspark_kafka_rebalance.source.group.starts.rival_runs import runs_in
from pyspark_kafka_rebalance.source.offsets.query_identity import QueryIdentity
from pyspark_kafka_rebalance.source.offsets.stream_offset import StreamOffset

P = TopicPartition("t", 0)
ME, OTHER = "me", "other"


def identity(query: str = ME, batch: int = 3) -> QueryIdentity:
    found = QueryIdentity()
    found.restore(StreamOffset(query=query, batch=batch))
    return found


def own_commits(
    run: str = "kafka_deferred-now", query: str = ME, follows: bool = True, live: bool = False
) -> OwnCommits:
    return OwnCommits(identity(query), run, follows, in_order=not live)


def commit(
    left: int | Remaining, *stretches: tuple[str, int], run: str = "before", batch: int = 9
) -> GroupCommit:
    remaining = left if isinstance(left, Remaining) else Remaining(left)
    found = tuple(Stretch(*stretch) for stretch in stretches)
    return GroupCommit(remaining, Origin(run, batch, found) if found else None)


@pytest.mark.parametrize(
    ("of_group", "proven", "start"),
    [
        # Only this query's own commits explain the difference.
        (commit(70, (ME, 0)), 40, 40),
        (commit(70, (ME, 40)), 40, 40),
        (commit(70, (ME, 0)), 70, 70),
        (commit(70, (ME, 0)), 90, 70),  # the checkpoint is ahead: it counts in any case
        # Others have delivered it, or nobody says who.
        (commit(70), 40, 70),
        (commit(70, (OTHER, 0)), 40, 70),
        (commit(70, (ME, 0), (OTHER, 40)), 40, 70),
        (commit(70, (OTHER, 0), (ME, 70)), 40, 70),
        # Some of it others, below: left out.
        (commit(70, (OTHER, 0), (ME, 50)), 40, 50),
        # Some of it others, behind its own: repeated, since reading goes in order.
        (commit(70, (ME, 0), (OTHER, 50)), 40, 40),
        (commit(70, (OTHER, 0), (ME, 45), (OTHER, 50), (ME, 60)), 40, 45),
        # The checkpoint does not know the partition: from where this query began with it.
        (commit(70, (OTHER, 0), (ME, 50)), None, 50),
        (commit(70, (OTHER, 0)), None, 70),
    ],
)
def test_where_reading_in_order_starts(
    of_group: GroupCommit, proven: int | None, start: int
) -> None:
    assert own_commits().seen(P, of_group, proven) == Remaining(start)


def test_with_live_exactly_what_others_have_delivered_is_left_out() -> None:
    live = own_commits(live=True)
    seen = live.seen(P, commit(70, (ME, 0), (OTHER, 50)), 40)
    assert seen == Remaining(70, (Gap(40, 50),))
    assert live.seen(P, commit(70, (ME, 0)), 40) == Remaining(40)
    # The checkpoint's gaps, too, if it is this query that has caught up on them since.
    gaps = (Gap(10, 20),)
    assert live.seen(P, commit(70, (ME, 0)), 70, gaps) == Remaining(70, gaps)
    assert live.seen(P, commit(70, (ME, 0), (OTHER, 70)), 70, gaps) == Remaining(70, gaps)
    other_caught_up = commit(70, (ME, 0), (OTHER, 10), (ME, 20), (OTHER, 70))
    assert live.seen(P, other_caught_up, 70, gaps) == Remaining(70)
    of_group = commit(Remaining(70, (Gap(10, 20),)), (ME, 0))
    assert live.seen(P, of_group, 40) == Remaining(40, (Gap(10, 20),))


def test_a_gap_of_the_checkpoint_is_its_own_as_far_as_it_was_the_one_to_read_it() -> None:
    """It had read 0 of its gap [0, 3), and another query the rest, after the group's offset 1."""
    of_group = commit(3, (ME, 0), (OTHER, 1))
    seen = own_commits(live=True).seen(P, of_group, 3, (Gap(0, 3),))
    assert seen == Remaining(3, (Gap(0, 1),))


def test_who_wants_the_group_to_win_reads_nothing_again() -> None:
    assert own_commits(follows=False).seen(P, commit(70, (ME, 0)), 40) == Remaining(70)


def test_what_this_run_has_committed_itself_is_what_it_knows() -> None:
    commits = own_commits(run="kafka_deferred-now")
    assert commits.seen(P, commit(70, (ME, 0), run="now"), 40) == Remaining(70)
    assert commits.other_runs == set()


def begun(
    commits: OwnCommits, of_group: GroupCommit | None, start: int, is_known: bool = True
) -> tuple[tuple[str, int], ...]:
    commits.begin(P, of_group, start, is_known)
    text = commits.describe(P, start, 4_096, "")
    found = Origin.decode(start, text, "")
    assert found is not None
    assert (found.run, found.batch) == ("now", 3)
    return found.stretches


@pytest.mark.parametrize(
    ("of_group", "start", "is_known", "stretches"),
    [
        (None, 500, False, [(ME, 500)]),  # a new query
        (commit(70), 70, False, [(ME, 70)]),  # goes on behind another client
        (commit(70, (ME, 5)), 70, True, [(ME, 5)]),  # a restart
        (commit(70, (OTHER, 5)), 70, True, [(OTHER, 5), (ME, 70)]),
        (commit(70, (ME, 5), (OTHER, 50)), 70, True, [(ME, 5), (OTHER, 50), (ME, 70)]),
        # The group was deleted, or moved back: what the checkpoint knows is this query's own.
        (None, 500, True, [(ME, 0)]),
        (commit(70), 500, True, [(ME, 70)]),
        # Set back to the checkpoint.
        (commit(70, (ME, 5)), 40, True, [(ME, 5)]),
        (commit(70, (ME, 5), (OTHER, 50)), 40, True, [(ME, 5)]),
        (commit(70, (OTHER, 5), (ME, 50)), 50, True, [(OTHER, 5), (ME, 50)]),
    ],
)
def test_what_its_own_commits_say(
    of_group: GroupCommit | None,
    start: int,
    is_known: bool,
    stretches: list[tuple[str, int]],
) -> None:
    assert list(begun(own_commits(), of_group, start, is_known)) == stretches


@pytest.mark.parametrize(
    ("gaps", "says"),
    [
        (((10, 20),), ((ME, 0), (OTHER, 10), (ME, 20), (OTHER, 70))),
        (((0, 20),), ((OTHER, 0), (ME, 20), (OTHER, 70))),
        (
            ((10, 20), (30, 40)),
            ((ME, 0), (OTHER, 10), (ME, 20), (OTHER, 30), (ME, 40), (OTHER, 70)),
        ),
        (tuple((n, n + 1) for n in range(1, 70, 2))[:25], ((ME, 0), (OTHER, 1))),  # too many
    ],
)
def test_gaps_that_it_takes_over_are_its_own(
    gaps: tuple[tuple[int, int], ...], says: tuple[tuple[str, int], ...]
) -> None:
    other = own_commits(query=OTHER, live=True)
    of_group = commit(Remaining(70, tuple(Gap(*gap) for gap in gaps)), (ME, 0))
    other.begin(P, of_group, 70, False)
    origin = Origin.decode(70, other.describe(P, 70, 4_096, ""), "")
    assert origin is not None
    assert origin.stretches == says


def test_only_so_many_queries_are_named() -> None:
    named = [(OTHER if n % 2 else ME, n) for n in range(17)]
    stretches = begun(own_commits(query="third"), commit(70, *named), 70)
    assert stretches == (*named[-15:], ("third", 70))


def test_gaps_are_named_even_if_earlier_owners_are_not() -> None:
    """They counted as delivered by who left them as soon as a group had had many owners."""
    owners = [(OTHER if n % 2 else ME, n) for n in range(16)]
    left = Remaining(70, (Gap(20, 30), Gap(40, 41)))
    stretches = begun(own_commits(query="third", live=True), commit(left, *owners), 70)
    assert stretches[-6:] == (
        *((OTHER, 15), ("third", 20), (OTHER, 30), ("third", 40), (OTHER, 41), ("third", 70)),
    )
    assert len(stretches) == 16


def test_a_partition_that_was_not_started_says_nothing() -> None:
    assert own_commits().describe(P, 7, 4_096, "") == ""


def test_a_log_that_became_shorter_is_this_querys_from_there_on() -> None:
    commits = own_commits()
    assert begun(commits, commit(70, (OTHER, 5)), 70) == ((OTHER, 5), (ME, 70))
    commits.move_back(P, 80)
    assert begun_now(commits, 80) == ((OTHER, 5), (ME, 70))
    commits.move_back(P, 30)
    assert begun_now(commits, 30) == ((OTHER, 5), (ME, 30))


def begun_now(commits: OwnCommits, offset: int) -> tuple[Stretch, ...]:
    found = Origin.decode(offset, commits.describe(P, offset, 4_096, ""), "")
    assert found is not None
    return found.stretches


def test_another_run_that_commits_under_this_id_is_a_rival() -> None:
    commits = own_commits()
    before = commit(40, (ME, 0), run="before")
    assert commits.seen(P, before, 40) == Remaining(40)
    assert (commits.other_runs, commits.has_rival) == ({"before"}, False)
    commits.begin(P, before, 40, is_known=True)
    assert commits.seen(P, before, 40) == Remaining(40)
    assert not commits.has_rival, "not started yet"
    commits.started(P)
    assert commits.seen(P, commit(50, (ME, 0), run="elsewhere"), 60) == Remaining(50)
    assert not commits.has_rival, "nothing beyond what this run has read"
    of_rival = commit(70, (ME, 0), run="elsewhere")
    commits.seen(P, of_rival, 60)
    assert commits.has_rival
    now = commits.become_another()
    assert now not in (ME, OTHER)
    assert commits.seen(P, of_rival, 60) == Remaining(70), "it counts as another query's"
    assert begun_now(commits, 60) == ((now, 0),)
    assert (commits.other_runs, commits.has_rival) == (set(), False)


def test_what_a_run_has_forgotten_with_its_log_is_not_read_from_its_beginning() -> None:
    commits = own_commits()
    commits.begin(P, None, 0, is_known=False)
    commits.started(P)
    of_other = commit(70, (ME, 0), (OTHER, 50), run="elsewhere")
    assert commits.seen(P, of_other, None) == Remaining(70)


def test_what_a_restored_query_reads_again_wins_over_the_checkpoint_of_another() -> None:
    restored, other = own_commits(), own_commits(query=OTHER)
    restored.set_back(P, commit(70, (ME, 0)), 20)

    def committed(by: OwnCommits, offset: int) -> GroupCommit:
        origin = Origin.decode(offset, by.describe(P, offset, 4_096, ""), "")
        return GroupCommit(Remaining(offset), origin)

    assert other.is_set_back(P, committed(restored, 40))
    assert not restored.is_set_back(P, committed(restored, 40)), "its checkpoint went back itself"
    other.begin(P, committed(restored, 40), 40, False)
    third = own_commits(query="third")
    assert third.is_set_back(P, committed(other, 60)), "whoever has it by then"
    assert not third.is_set_back(P, committed(other, 70))
    assert not third.is_set_back(P, commit(40, (OTHER, 0)))
    assert not third.is_set_back(P, None)


def test_runs_are_told_apart_by_the_client_ids_of_their_members() -> None:
    assert token_of("my-app-1f0c9a77") == "1f0c9a77"
    members = (
        GroupMember("my-app-1f0c9a77-0", member_id="a"),
        GroupMember("kafka_deferred-aabbccdd-11", member_id="b"),
        GroupMember("somebody", member_id="c"),
        GroupMember("my-app-00000000-0", member_id="own, static: joined by the run before"),
    )
    found = runs_in(GroupDescription("Stable", members), {members[-1].member_id})
    assert found >= {"1f0c9a77", "aabbccdd"}
    assert "00000000" not in found


@given(
    st.lists(st.sampled_from([ME, OTHER]), max_size=4),
    st.lists(st.integers(0, 50), min_size=5, max_size=5, unique=True),
    st.integers(0, 60) | st.none(),
    st.booleans(),
)
def test_nothing_of_its_own_beyond_the_checkpoint_is_left_out(
    queries: list[str], bounds: list[int], proven: int | None, live: bool
) -> None:
    """And what others have delivered is, with live exactly."""
    bounds.sort()
    end = bounds[-1] + 1
    stretches = list(zip(queries, bounds, strict=False))
    of_group = commit(end, *stretches)
    seen = own_commits(live=live).seen(P, of_group, proven)
    owners = [
        next((q for q, since in reversed(stretches) if since <= offset), OTHER)
        for offset in range(end)
    ]
    again = [o for o, q in enumerate(owners) if q == ME and o >= (proven or 0)]
    left = [o for o in range(end) if o in seen]
    assert left == (again if live else list(range(again[0], end)) if again else [])
    assert end in seen


def committed_by(commits: OwnCommits, offset: int) -> GroupCommit:
    found = Origin.decode(offset, commits.describe(P, offset, 4_096, ""), "")
    return GroupCommit(Remaining(offset), found)


def set_back_to_50() -> OwnCommits:
    """This query had read up to 100, and another up to 200; then its backup came back."""
    restored = own_commits()
    restored.set_back(P, commit(200, (ME, 0), (OTHER, 100)), 50)
    restored.started(P)
    return restored


def test_a_set_back_is_followed_once() -> None:
    """A query that died before its first commit followed it again, without end."""
    of_group = committed_by(set_back_to_50(), 70)
    other = own_commits(query=OTHER)
    assert other.is_set_back(P, of_group)
    other.begin(P, of_group, 70, True)
    other.started(P)
    restarted = own_commits(query=OTHER)
    restarted.restore(dict(other.followed()))
    assert not restarted.is_set_back(P, of_group), "what its checkpoint says is of after it"
    assert restarted.seen(P, of_group, 200) == Remaining(70)
    # Set back once more, by another.
    twice = own_commits()
    twice.set_back(P, of_group, 60)
    assert restarted.is_set_back(P, committed_by(twice, 60))


def test_two_set_backs_of_one_run_are_not_the_same() -> None:
    restored = set_back_to_50()
    before = dict(restored.followed())
    restored.set_back(P, commit(200, (ME, 0)), 50)
    restored.started(P)
    assert restored.followed() != before


def test_a_checkpoint_of_before_a_set_back_proves_nothing_of_what_was_set_back() -> None:
    """The other took over at 70 and read to 300; its own backup, at 200, is older than that."""
    other = own_commits(query=OTHER)
    other.begin(P, committed_by(set_back_to_50(), 70), 70, True)
    other.started(P)
    of_group = committed_by(other, 300)
    restored = own_commits("kafka_deferred-restored", OTHER)
    assert restored.seen(P, of_group, 200) == Remaining(70)
    restored.set_back(P, of_group, 70)
    of_group = committed_by(restored, 70)
    assert restored.is_set_back(P, of_group), "its checkpoint stands at 200"
    restored.begin(P, of_group, 70, True)
    restored.started(P)
    assert not restored.is_set_back(P, of_group)
    # One of after it proves what it says.
    later = own_commits("kafka_deferred-later", OTHER)
    later.restore(dict(other.followed()))
    assert later.seen(P, committed_by(other, 300), 200) == Remaining(200)


def test_more_set_backs_than_there_is_room_for_are_joined() -> None:
    """Who knows of none but the oldest follows all."""
    tokens, of_group = [], commit(1_000, (ME, 0))
    for start in range(900, 0, -100):
        restored = own_commits()
        restored.set_back(P, of_group, start)
        restored.started(P)
        tokens.append(restored.followed()[P])
        of_group = committed_by(restored, start + 50)
    assert of_group.origin is not None
    assert len(of_group.origin.set_backs) == 4
    for known, token in enumerate([None, *tokens]):
        other = own_commits(query=OTHER)
        other.restore({} if token is None else {P: token})
        assert other.is_set_back(P, of_group) == (known < len(tokens))
    assert len(own_commits(query=OTHER).describe(P, 0, 4_096, "")) == 0
    assert of_group.origin.encode(150, 120, "") != "", "in little room they are one"


def test_with_more_stretches_than_there_is_room_for_the_oldest_are_nobodys() -> None:
    """All above an open gap counted as the newcomer's, also what the last owner had delivered."""
    left, of_group = Remaining(100, (Gap(10, 20),)), commit(Remaining(100), (ME, 0))
    for turn in range(60):
        query, end = (OTHER, ME)[turn % 2], 100 + 5 * turn
        left = Remaining(end, left.gaps)
        now = own_commits(query=query, live=True)
        now.begin(P, GroupCommit(left, of_group.origin), end, True)
        of_group = committed_by(now, end + 5)
        assert of_group.origin is not None
        found = of_group.origin.stretches
        assert len(found) <= 50
        assert of_group.origin.delivered_by(query, end + 5)[-1] == (end, end + 5)
        delivered = of_group.origin.delivered_by(query, end + 5)
        assert any(since <= 10 and until >= 20 for since, until in delivered)
        for before in range(max(0, turn - 40), turn):
            owner = (OTHER, ME)[before % 2]
            delivered = of_group.origin.delivered_by(owner, end + 5)
            assert (100 + 5 * before, 105 + 5 * before) in delivered, "by who had it then"


def test_a_consumer_carries_along_what_queries_have_said() -> None:
    of_group = committed_by(set_back_to_50(), 70)
    carried = of_group.carried_on()
    assert carried is not None
    assert of_group.origin is not None
    assert carried.stretches == ((ME, 0), ("_", 70))
    assert carried.set_backs == of_group.origin.set_backs
    after = GroupCommit(Remaining(75), Origin.decode(75, carried.encode(75, 2_048, ""), ""))
    other = own_commits(query=OTHER)
    assert other.is_set_back(P, after)
    assert own_commits("kafka_deferred-back").seen(P, after, 60) == Remaining(60)
    other.begin(P, after, 75, True)
    assert begun_now(other, 80) == ((ME, 0), ("_", 70), (OTHER, 75))
    assert commit(70).carried_on() is None


def test_gaps_that_a_consumer_takes_over_are_no_querys() -> None:
    of_group = commit(Remaining(70, (Gap(10, 20),)), (ME, 0))
    carried = of_group.carried_on()
    assert carried is not None
    assert carried.stretches == ((ME, 0), ("_", 10), (ME, 20), ("_", 70))
