"""Who is told of an aborted transaction, and which commits wait for that; invariants by number."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from pyspark_kafka_rebalance.producer.aborts import Aborts, Author, Call


class Task(Author):
    """An author whose end the test decides."""

    def __init__(self) -> None:
        super().__init__(lambda: self.is_done)
        self.is_done = False

    __slots__ = ("is_done",)


@pytest.fixture
def aborts() -> Aborts:
    return Aborts()


def refusal(aborts: Aborts, author: Author) -> str | None:
    return aborts.refusal(Call(author, aborts.tellings))


def hears(aborts: Aborts, author: Author) -> str | None:
    """What its next call raises, if anything."""
    call = Call(author, aborts.tellings)
    found = aborts.refusal(call)
    if found is not None:
        aborts.told(call)
    return found


def held(aborts: Aborts, author: Author, *partitions: int) -> set[int]:
    return set(aborts.holds(Call(author, aborts.tellings), partitions))


def test_each_that_has_sent_is_told_once(aborts: Aborts) -> None:
    """Invariant 1; it was told to one of them, and the other went on behind the gap."""
    one, other, third = Task(), Task(), Task()
    aborts.sent(one, [0])
    aborts.sent(other, [1])
    aborts.aborted("fenced")
    for author in (one, other):
        assert hears(aborts, author) == "fenced"
        assert hears(aborts, author) is None
    assert hears(aborts, third) is None
    assert not aborts.any_to_tell


def test_what_was_committed_before_is_nobodys_loss(aborts: Aborts) -> None:
    before, now = Task(), Task()
    aborts.sent(before, [0])
    aborts.committed()
    aborts.sent(now, [1])
    aborts.aborted("fenced")
    assert hears(aborts, before) is None
    assert hears(aborts, now) == "fenced"


def test_calls_made_before_the_telling_are_refused_later_too(aborts: Aborts) -> None:
    """Invariant 2: those of ``gather``, one behind the other."""
    author = Task()
    aborts.sent(author, [0])
    first, second, third = (Call(author, aborts.tellings) for _ in range(3))
    aborts.aborted("fenced")
    assert aborts.refusal(first) == "fenced"
    aborts.told(first)
    again = Call(author, aborts.tellings)
    assert not aborts.refuses(again)
    assert aborts.refusal(second) == aborts.refusal(third) == "fenced"
    assert aborts.refuses(again), "nothing overtakes what is refused"
    aborts.told(second)
    assert aborts.refuses(again)
    aborts.told(third)
    assert hears(aborts, author) is None


def test_an_error_that_is_heard_late_tells_of_no_later_abort(aborts: Aborts) -> None:
    author = Task()
    aborts.sent(author, [0])
    first, second = (Call(author, aborts.tellings) for _ in range(2))
    aborts.aborted("one")
    assert aborts.refusal(first) == aborts.refusal(second) == "one"
    aborts.aborted("another")
    aborts.owe(second, "two")
    aborts.told(first)
    assert refusal(aborts, author) == "two"


def test_an_error_that_nobody_waits_for_tells_nothing(aborts: Aborts) -> None:
    author = Task()
    aborts.sent(author, [0])
    aborts.aborted("fenced")
    cancelled = Call(author, aborts.tellings)
    assert aborts.refusal(cancelled) == "fenced"
    aborts.unheard(cancelled)
    assert hears(aborts, author) == "fenced"
    assert hears(aborts, author) is None


def test_a_restart_point_waits_for_those_who_have_sent_of_it(aborts: Aborts) -> None:
    """Invariant 3."""
    one, other = Task(), Task()
    aborts.sent(one, [0])
    aborts.sent(other, [1, 2])
    early = Call(one, aborts.tellings)
    aborts.aborted("fenced")
    hears(aborts, one)
    aborts.sent(one, [0])
    assert held(aborts, one, 0, 1, 2) == {1, 2}
    hears(aborts, other)
    assert held(aborts, one, 0, 1, 2) == set()
    assert aborts.holds(early, [0, 1, 3]) == {0, 1}, "its author did not know"


def test_what_an_author_that_has_ended_was_to_be_told_is_told_to_the_next_call(
    aborts: Aborts,
) -> None:
    """Invariant 4."""
    ended, parent = Task(), Task()
    aborts.sent(ended, [0])
    late = Call(ended, aborts.tellings)
    ended.is_done = True
    queued = Call(Task(), aborts.tellings)
    aborts.aborted("fenced")
    assert aborts.refusal(queued) == "fenced"
    assert hears(aborts, parent) == "fenced"
    assert hears(aborts, parent) is None
    assert aborts.refusal(queued) == "fenced", "made before anybody knew"
    assert aborts.refusal(late) == "fenced"
    assert held(aborts, parent, 0) == {0}, "nothing of it was sent again"
    aborts.sent(parent, [0])
    assert held(aborts, parent, 0) == set()


def test_an_author_that_ends_before_it_is_told(aborts: Aborts) -> None:
    one, other, parent = Task(), Task(), Task()
    aborts.sent(one, [0])
    aborts.sent(other, [1])
    aborts.aborted("fenced")
    hears(aborts, one)
    other.is_done = True
    assert refusal(aborts, parent) is None, "somebody has been told"
    assert held(aborts, parent, 0, 1) == {1}
    aborts.owe(Call(parent), "passed by", [1])
    assert hears(aborts, parent) == "passed by"
    assert held(aborts, parent, 0, 1) == set(), "refused once"


def test_who_aborts_knows_and_the_others_are_told(aborts: Aborts) -> None:
    author, other, ended = Task(), Task(), Task()
    for p, each in enumerate((author, other, ended)):
        aborts.sent(each, [p])
    ended.is_done = True
    queued = Call(author, aborts.tellings)
    aborts.aborted_by(author, "by the application")
    assert aborts.refusal(queued) is None
    assert refusal(aborts, other) == "by the application"
    assert held(aborts, author, 0, 1, 2) == {1}


class World:
    """Workers that read a source partition each, and one that commits how far they are.

    A call is made, waits in a queue, is carried out, and is answered: each at a time of its own.
    """

    ROWS = 12

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.aborts = Aborts()
        self.committed: dict[int, list[int]] = {p: [] for p in range(3)}
        self.points = dict.fromkeys(self.committed, 0)
        self.open: list[tuple[int, int]] = []
        self.committer = Task()
        self.queue: deque[Callable[[], Callable[[], None]]] = deque()
        self.answers: deque[Callable[[], None]] = deque()
        self.authors = {p: Task() for p in self.committed}
        self.next = dict(self.points)
        self.attempts = dict(self.points)
        self.under_way = 0
        self.restarts = False  # the committer has been told

    def step(self, *, calm: bool = False) -> None:
        choices = [self.send, self.carry_out, self.carry_out, self.answer, self.answer]
        choices += [self.commit, self.commit]
        if not calm:
            choices += [self.abort, self.end]
        self.random.choice(choices)()

    def send(self) -> None:
        p = self.random.choice(list(self.authors))
        author, n = self.authors[p], self.next[p]
        if author.is_done or n == self.ROWS:
            return
        self.next[p] += 1
        self.under_way += 1
        call, attempt = Call(author, self.aborts.tellings), self.attempts[p]

        def carry_out() -> Callable[[], None]:
            if self.aborts.refusal(call) is not None:
                if self.aborts.has_sent(author):
                    self.abort()
                    self.aborts.owe(call, "fenced")
                return lambda: self.go_back(p, n, call, attempt)
            self.open.append((p, n))
            self.aborts.sent(author, [p])
            return self.is_answered

        self.queue.append(carry_out)

    def go_back(self, p: int, n: int, call: Call, attempt: int) -> None:
        """Once for all calls of one ``gather``."""
        self.is_answered()
        if attempt != self.attempts[p]:
            self.aborts.told(call)
        elif self.authors[p].is_done:
            self.next[p] = min(self.next[p], n)  # which nobody hears
        else:
            self.aborts.told(call)
            self.begin(p)

    def is_answered(self) -> None:
        self.under_way -= 1

    def begin(self, p: int) -> None:
        self.attempts[p] += 1
        self.next[p] = self.points[p]

    def commit(self) -> None:
        """How far everybody is; only known when no call is under way."""
        if self.under_way:
            return
        if self.restarts:
            self.restarts = False
            self.restart()
        self.under_way += 1
        call, points = Call(self.committer, self.aborts.tellings), dict(self.next)

        def carry_out() -> Callable[[], None]:
            refused = self.aborts.refusal(call)
            if refused is None:
                moved = [p for p in points if points[p] != self.points[p]]
                held = self.aborts.holds(call, moved)
                if held:
                    self.abort()
                    self.aborts.owe(call, "passed by", held)
                    refused = "passed by"
            if refused is not None:
                return lambda: self.committer_is_told(call)
            for p, n in self.open:
                self.committed[p].append(n)
            self.open.clear()
            self.aborts.committed()
            self.points = points
            for p, point in points.items():
                assert self.committed[p] == list(range(point)), f"source partition {p}"
            return self.is_answered

        self.queue.append(carry_out)

    def committer_is_told(self, call: Call) -> None:
        self.aborts.told(call)
        self.is_answered()
        self.restarts = True

    def restart(self) -> None:
        """Have those that have ended go on from their restart points."""
        for p, author in self.authors.items():
            if author.is_done and not any(p == sent for sent, _ in self.open):
                self.authors[p] = Task()
                self.begin(p)

    def abort(self) -> None:
        if self.open:
            self.open.clear()
            self.aborts.aborted("fenced")

    def end(self) -> None:
        if self.random.random() < 0.2:
            self.random.choice(list(self.authors.values())).is_done = True

    def carry_out(self) -> None:
        if self.queue:
            self.answers.append(self.queue.popleft()())

    def answer(self) -> None:
        if self.answers:
            self.answers.popleft()()


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_whatever_happens_each_row_is_committed_once_and_in_order(first: int) -> None:
    for seed in range(first, first + 100):
        world = World(seed)
        for _ in range(250):
            world.step()
        for _ in range(2_000):
            world.step(calm=True)
            done = [p for p, point in world.points.items() if point == World.ROWS]
            if len(done) == 3:
                break
            world.restarts = True
        else:
            pytest.fail(f"seed {seed}: {world.points}")
