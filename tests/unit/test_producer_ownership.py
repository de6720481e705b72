"""SourceOwnership: what a producer owns, and what its transaction touches."""

from __future__ import annotations

from histories import histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyspark_kafka_rebalance.producer.members.ownership import ProducerEvents, SourceOwnership

COUNT = 4


def owning(*partitions: int) -> SourceOwnership:
    """After a turn in which these were told to be assigned."""
    ownership = SourceOwnership(COUNT)
    assign(ownership, *partitions)
    ownership.turn()
    return ownership


def assign(ownership: SourceOwnership, *partitions: int, point: str | None = None) -> None:
    ownership.assigned(partitions)
    for p, number in ownership.reading().items():
        assert ownership.read(p, number, point)


def test_what_is_assigned_is_owned_from_the_turn_after_its_restart_point_is_read() -> None:
    ownership = SourceOwnership(COUNT)
    ownership.assigned([1])
    assert not ownership.turn()
    (number,) = ownership.reading().values()
    ownership.read(1, number, "at 5")
    assert not ownership.owns(1)
    assert ownership.turn().assigned == {1: "at 5"}
    assert ownership.restart_points == {1: "at 5"}


def test_a_revoke_waits_for_the_transaction_that_has_records_of_it() -> None:
    ownership = owning(0, 1)
    ownership.touch([0])
    ownership.asked_back([0, 1])
    told = ownership.turn()
    assert told.revoked == {1}, "no record of it is in the transaction"
    assert told.to_be_revoked == {0}
    assert ownership.hold([0, 1]) == {0}
    assert not ownership.turn(), "told twice"
    assert ownership.begin_commit()
    ownership.committed({0: "x"})
    assert ownership.turn().revoked == {0}
    assert ownership.hold([0, 1]) == set()


def test_what_is_lost_dooms_the_transaction_that_has_records_of_it() -> None:
    ownership = owning(0, 1)
    ownership.touch([0])
    ownership.lost([1], "fenced")
    assert ownership.doomed is None
    ownership.lost([0], "fenced")
    assert ownership.doomed == "fenced"
    assert not ownership.begin_commit()
    ownership.aborted()
    assert ownership.turn() == ProducerEvents(lost=frozenset({0, 1}))


def test_the_broker_decides_a_commit_that_is_under_way_when_the_loss_comes() -> None:
    ownership = owning(0)
    ownership.touch([0])
    assert ownership.begin_commit()
    ownership.lost([0], "fenced")
    assert ownership.doomed is None
    ownership.committed({0: "x"})
    assert ownership.restart_points == {}


def test_a_commit_under_way_is_not_offered_to_the_group_again_after_a_loss() -> None:
    """A member that has joined anew was accepted for what another owned by then."""
    ownership = owning(0, 1)
    ownership.touch([0])
    assert ownership.begin_commit()
    ownership.lost([1], "not touched")
    assert ownership.may_be_accepted
    ownership.lost([0], "fenced")
    assert not ownership.may_be_accepted
    assign(ownership, 0)
    assert not ownership.may_be_accepted, "it is of another assignment"
    ownership.aborted()
    assert ownership.may_be_accepted


def test_what_went_and_came_back_untold_is_not_owned_before_that_is_told() -> None:
    """An application within its loop went on with a restart point of before."""
    ownership = owning(0, 1)
    ownership.asked_back([0])
    assert ownership.turn(tells=False).revoked == {0}
    ownership.released([0])
    assign(ownership, 0, point="later")
    assert not ownership.turn(tells=False)
    assert not ownership.owns(0)
    assert ownership.turn().assigned == {0: "later"}
    ownership.asked_back([0])
    assert ownership.turn().revoked == {0}
    ownership.asked_back([])
    for p, number in ownership.reading().items():
        ownership.read(p, number, "later still")
    assert ownership.turn(tells=False).assigned == {0: "later still"}, "it has been told"


def test_what_was_never_told_is_given_back_without_a_word() -> None:
    ownership = SourceOwnership(COUNT)
    assign(ownership, 0)
    ownership.asked_back([0])
    assert ownership.hold([0]) == set()
    assert not ownership.turn()


def test_a_request_that_is_taken_back_is_read_anew_if_it_was_given_up() -> None:
    ownership = owning(0)
    ownership.asked_back([0])
    assert ownership.turn().revoked == {0}
    ownership.asked_back([])
    (number,) = ownership.reading().values()
    ownership.read(0, number, "later")
    assert ownership.turn().assigned == {0: "later"}


def test_an_answer_that_a_loss_has_overtaken_changes_nothing() -> None:
    ownership = SourceOwnership(COUNT)
    ownership.assigned([0])
    (late,) = ownership.reading().values()
    ownership.lost([0], "fenced")
    ownership.assigned([0])
    assert not ownership.read(0, late, "stale")
    assert ownership.reading().keys() == {0}


def test_lost_during_its_commit_and_assigned_again_it_is_read_after_the_commit() -> None:
    ownership = owning(0, 1)
    ownership.touch([0])
    assert ownership.begin_commit()
    ownership.lost([0], "no successful heartbeat")
    ownership.assigned([0])
    assert not ownership.reading()  # the group may accept the commit yet: it was never gone there
    ownership.committed({0: "after the commit"})
    assert list(ownership.reading()) == [0]


def test_lost_during_its_commit_and_assigned_again_it_is_given_back_after_the_commit() -> None:
    ownership = owning(0)
    ownership.touch([0])
    assert ownership.begin_commit()
    ownership.lost([0], "no successful heartbeat")
    ownership.assigned([0])
    ownership.asked_back([0])
    assert ownership.hold([0]) == {0}
    ownership.committed({0: "after the commit"})
    ownership.asked_back([0])
    assert not ownership.hold([0])


def test_lost_and_assigned_again_it_is_read_after_the_abort() -> None:
    ownership = owning(0)
    ownership.touch([0])
    ownership.lost([0], "fenced")
    ownership.assigned([0])
    assert not ownership.reading()
    ownership.aborted()
    assert list(ownership.reading()) == [0]


def test_lost_and_assigned_again_is_told_one_after_the_other() -> None:
    ownership = owning(0)
    ownership.lost([0], "fenced")
    assign(ownership, 0)
    assert ownership.turn() == ProducerEvents(lost=frozenset({0}))
    assert ownership.turn().assigned == {0: None}


def test_after_a_commit_in_doubt_everything_owned_is_read_anew() -> None:
    ownership = owning(0, 1)
    ownership.touch([0])
    assert ownership.begin_commit()
    ownership.in_doubt()
    assert ownership.restart_points == {}
    for p, number in ownership.reading().items():
        ownership.read(p, number, f"found {p}")
    assert ownership.turn() == ProducerEvents(lost=frozenset({0, 1}))
    assert ownership.turn() == ProducerEvents({0: "found 0", 1: "found 1"})


def test_what_the_source_does_not_have_is_not_told_before_it_grows() -> None:
    ownership = SourceOwnership(2)
    assign(ownership, 2)
    assert not ownership.turn()
    assert ownership.unknown() == {2}
    ownership.source_partition_count = 3
    assert ownership.turn().assigned == {2: None}


def test_events_of_several_turns_are_told_as_one() -> None:
    first = ProducerEvents(assigned={0: "a", 1: "b"})
    then = ProducerEvents(revoked=frozenset({0, 2}))
    assert first.then(then) == ProducerEvents({1: "b"}, revoked=frozenset({2}))
    back = ProducerEvents(assigned={2: "c"})
    again = first.then(then).then(back)
    assert again == ProducerEvents({1: "b", 2: "c"}, revoked=frozenset({2}))
    gone = again.then(ProducerEvents(revoked=frozenset({2})))
    assert gone == ProducerEvents({1: "b"}, revoked=frozenset({2})), "2 was owned before it all"


class Histories(RuleBasedStateMachine):
    """Any history of a group and its application, against what the group and a log would know."""

    partitions = st.sets(st.integers(0, COUNT - 1), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self.ownership = SourceOwnership(COUNT)
        self.log: dict[int, str | None] = dict.fromkeys(range(COUNT))  # as committed
        self.held: set[int] = set()  # what the group has given to this member
        self.asked: set[int] = set()
        self.believed: dict[int, str | None] = {}  # what the application was told
        self.gone: set[int] = set()  # of that, what is lost already
        self.untold: set[int] = set()  # gone, and neither returned by a call nor heard
        self.sent: set[int] | None = None
        self.lost_of_sent = False
        self.lost_of_committing = False
        self.committing = False
        self.steps = 0

    @rule(partitions=partitions)
    def assigned(self, partitions: set[int]) -> None:
        new = partitions - self.held
        self.held |= new
        self.ownership.assigned(new)

    @rule(partitions=partitions)
    def asked_back(self, partitions: set[int]) -> None:
        self.asked = partitions & self.held
        self.ownership.asked_back(self.asked)

    @rule()
    def polled(self) -> None:
        """The group gets back what is not held up."""
        free = self.asked - self.ownership.hold(self.asked)
        assert not free & (self.sent or set()), "released with records in an open transaction"
        assert not free & (self.believed.keys() - self.gone), (
            "released, and the application was not told"
        )
        self.held -= free
        self.asked -= free
        self.ownership.released(free)

    @rule(partitions=partitions)
    def lost(self, partitions: set[int]) -> None:
        gone = partitions & self.held
        self.held -= gone
        self.asked -= gone
        self.gone |= gone & self.believed.keys()
        if self.sent is not None and self.sent & gone:
            self.lost_of_sent |= not self.committing
            self.lost_of_committing |= self.committing
        self.ownership.lost(gone, "lost")

    @rule(partition=st.integers(0, COUNT - 1), late=st.booleans())
    def read(self, partition: int, late: bool) -> None:
        number = self.ownership.reading().get(partition)
        if number is not None:
            self.ownership.read(partition, number - late, self.log[partition])

    @rule(tells=st.booleans())
    def turn(self, tells: bool) -> None:
        touched = set(self.sent or ())
        told = self.ownership.turn(tells=tells)
        self.untold |= told.lost | told.revoked
        if tells:
            self.untold.clear()
        assert not told.assigned.keys() & self.untold, "back before it was told to be gone"
        assert not told.lost & told.assigned.keys()
        assert not told.revoked & touched, "taken away with records in an open transaction"
        for p in told.lost | told.revoked:
            assert p in self.believed, f"{p} is told to be gone and was never told"
            del self.believed[p]
            self.gone.discard(p)
        for p, point in told.assigned.items():
            assert p not in self.believed, "told twice"
            assert point == self.log[p], "an old restart point"
            self.believed[p] = point

    @precondition(lambda self: self.ownership.restart_points and not self.committing)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(sorted(self.ownership.restart_points)))
        assert p in self.believed
        self.sent = (self.sent or set()) | {p}
        self.ownership.touch([p])

    @precondition(lambda self: self.sent is not None and not self.committing)
    @rule()
    def begin_commit(self) -> None:
        allowed = self.ownership.begin_commit()
        assert allowed == (not self.lost_of_sent)
        if allowed:
            self.committing = True
        else:
            self.ownership.aborted()
            self.sent, self.lost_of_sent = None, False

    @precondition(lambda self: self.committing)
    @rule(outcome=st.sampled_from(["committed", "refused", "unknown"]))
    def decided(self, outcome: str) -> None:
        self.steps += 1
        assert self.sent is not None
        points = dict.fromkeys(self.sent, f"{self.steps}")
        if outcome == "committed":
            self.ownership.committed(points)
        elif outcome == "refused":
            self.ownership.aborted()
            points = {}
        else:
            self.ownership.in_doubt()
            self.gone |= self.believed.keys()
            points = points if self.steps % 2 else {}
        self.log |= points
        for p in points.keys() & (self.believed.keys() - self.gone):
            self.believed[p] = points[p]
        self.sent, self.committing, self.lost_of_committing = None, False, False

    @precondition(lambda self: self.sent is not None and not self.committing)
    @rule()
    def abort(self) -> None:
        self.ownership.aborted()
        self.sent, self.lost_of_sent = None, False

    @invariant()
    def what_is_owned_is_held_told_and_as_committed(self) -> None:
        points = self.ownership.restart_points
        assert points.keys() <= self.held
        assert points.keys() <= self.believed.keys() - self.gone
        assert all(point == self.log[p] for p, point in points.items())
        assert self.ownership.touched == (None if self.sent is None else frozenset(self.sent))
        assert (self.ownership.doomed is not None) == self.lost_of_sent
        lost = self.lost_of_sent or self.lost_of_committing
        assert self.ownership.may_be_accepted == (not lost)


Histories.TestCase.settings = settings(
    max_examples=histories(150), stateful_step_count=30, deadline=None
)
TestHistories = Histories.TestCase
