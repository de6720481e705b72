"""What the docs promise of every record and every committed offset, as a judge of histories. Pure.

A history is what the brokers' logs have, what the readers of one group delivered, which offsets
the group was seen to have, and what happened to whom. :func:`judge` says which promise it breaks,
by the names of Jepsen's Kafka workload. It is written from the docs and knows nothing of the code:
what it lets pass is what they say may happen.

A *break* is what may interrupt a reader: its death, a stop that did not complete, the end of its
session. What was *in flight* at a break may be delivered again, and nothing else:

- of a query, one batch: the last that its sink got before the break, or the first that it got
  after it, which had been planned before (a planner that stood still), and so has no record that
  was sent since. If a session ended, this goes by the partition: the query may have gone on with
  others. If a broker was away then, which may have coordinated, also those that it got since;
- of a plain member, what it had been handed and had not committed.

A batch that takes longer than its query allows (``Rules.limits``) is in flight as at a break:
others may have read it by then. If the group's offsets are moved back or deleted, members begin
there, and what they had delivered comes again; a query goes on at its checkpoint's position, if
that is further.

What is deleted before it was read, nobody delivers. Then a query fails and names it, before the
group goes on behind it, unless there is a reader that is to go on without (``Life``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

from .events import (
    Away,
    Began,
    Break,
    Deleted,
    Delivered,
    End,
    Event,
    Life,
    Log,
    Moved,
    Produced,
    Refused,
    Renewed,
    RestartPoint,
    Seen,
    Started,
)
from .promises import (
    AFTER_SPARK,
    ALL_OR_NONE,
    CHECKPOINT_TOO,
    COMMITTED_ONCE,
    COMMITTED_ONLY,
    FAILS_ON_LOSS,
    FAILS_ON_RENEWAL,
    FORWARD,
    HANDS_OUT_NO_MORE,
    IN_ORDER,
    MARKED,
    NOTHING_SKIPPED,
    ONE_BATCH,
    ONE_VALUE,
    ONLY_IN_A_REPLAY,
    READ_ON,
    READ_TO_ITS_END,
    REPLAY_KEEPS,
    REPLAY_WAITS,
    SAME_RECORDS,
)

E = TypeVar("E")
#: When a sink got a batch of a run, its number, and of which logs it has rows.
_Begun = tuple[float, int, set[Log]]

#: Jepsen's names, and two of our own for the group's committed offsets.
Name = Literal[
    "lost write",
    "unseen",
    "duplicate",
    "poll skip",
    "nonmonotonic poll",
    "aborted read",
    "torn transaction",
    "nonmonotonic send",
    "inconsistent offsets",
    "commit ahead",
    "commit back",
]


@dataclass(frozen=True)
class Rules:
    """What the readers of the group are.

    Attributes
    ----------
    read_committed : bool
        Of all readers.
    members : frozenset of str
        Plain members; the other readers are queries.
    live : frozenset of str
        Readers with ``parallelRebalance=live`` or its like.
    complete : bool
        The readers have had all the time they need: what is not delivered never will be.
    limits : mapping
        Of queries, in seconds: ``maxBatchDurationMs`` or ``revokeTimeoutMs``, the lower one.
    forgets : frozenset of str
        Topics that have had records of which nothing tells: those were compacted away, or deleted.
    """

    read_committed: bool = True
    members: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    complete: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)
    forgets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """One promise that is broken, for one record or one committed offset."""

    name: Name
    log: Log
    offset: int
    who: str
    promise: str
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.log} at {self.offset}, {self.who}: {self.detail} [{self.promise}]"
        )


def judge(history: Iterable[Event], rules: Rules) -> list[Verdict]:
    """Say what the history breaks; in no particular order."""
    return list(_Judge(list(history), rules).verdicts())


def summary(verdicts: Iterable[Verdict], shown: int = 20) -> list[str]:
    """Lines for people: neighbouring offsets of the same verdict are one line."""
    groups: dict[tuple[str, ...], list[Verdict]] = defaultdict(list)
    for v in verdicts:
        groups[v.name, str(v.log), v.who, v.promise].append(v)
    lines = []
    for (name, log, who, promise), some in groups.items():
        offsets = sorted(v.offset for v in some)
        where = f"{offsets[0]}" if len(some) == 1 else f"{offsets[0]}..{offsets[-1]} ({len(some)})"
        lines.append(f"{name}: {log} at {where}, {who}: {some[0].detail} [{promise}]")
    more = [f"and {len(lines) - shown} more"] if len(lines) > shown else []
    return lines[:shown] + more


def _only(kind: type[E], history: Sequence[Event]) -> list[E]:
    return [event for event in history if isinstance(event, kind)]


def _last_until(batches: Sequence[_Begun], since: float) -> Sequence[_Begun]:
    """The last that had begun by then, and all after it."""
    begun = sum(at <= since for at, _, _ in batches)
    return batches[max(0, begun - 1) :]


class _Judge:
    def __init__(self, history: Sequence[Event], rules: Rules) -> None:
        self._rules = rules
        self._produced = _only(Produced, history)
        self._records = {(event.log, event.offset): event for event in self._produced}
        self._deliveries: dict[tuple[Log, int], list[Delivered]] = defaultdict(list)
        self._batches: dict[tuple[str, int], dict[int, tuple[float, set[Log]]]] = defaultdict(dict)
        for one in _only(Delivered, history):
            self._deliveries[one.log, one.offset].append(one)
            self._begins(one.reader, one.run, one.batch, one.began, [one.log])
        for began in _only(Began, history):
            self._begins(began.reader, began.run, began.batch, began.at, began.logs)
        self._replays = {
            (event.reader, event.run): event.replays for event in _only(Started, history)
        }
        self._seen: dict[Log, list[Seen]] = defaultdict(list)
        for look in _only(Seen, history):
            self._seen[look.log].append(look)
        self._ends: dict[Log, list[End]] = defaultdict(list)
        for end in _only(End, history):
            self._ends[end.log].append(end)
        self._points = {event.log: event.rows for event in _only(RestartPoint, history)}
        self._lives = _only(Life, history)
        self._began_at = {(life.reader, life.run): life.since for life in self._lives}
        self._breaks = _only(Break, history)
        self._aways = sorted(_only(Away, history), key=lambda away: away.since)
        self._moves = _only(Moved, history)
        self._deleted = _only(Deleted, history)
        self._gone = {(event.log, event.offset) for event in self._deleted}
        self._renewed = _only(Renewed, history)
        self._anew = {event.log.topic for event in self._renewed}
        self._anew |= {m.topic for m in self._moves if m.offset is None and m.topic is not None}
        self._refused = _only(Refused, history)
        self._topic_ids: dict[str, set[str]] = defaultdict(set)
        for log, _ in (*self._records, *self._deliveries):
            self._topic_ids[log.topic].add(log.topic_id)
        for deliveries in self._deliveries.values():
            deliveries.sort(key=lambda d: (d.completed, d.place))
        for seen in self._seen.values():
            seen.sort(key=lambda s: s.at)
        #: Batches that came after a break, and since when the reader had stood still.
        self._planned_before: dict[tuple[str, int, int, Log], float] = {}
        self._in_flight = self._what_was_in_flight() | self._what_took_too_long()

    def _begins(self, reader: str, run: int, batch: int, at: float, logs: Iterable[Log]) -> None:
        batches = self._batches[reader, run]
        before, some = batches.get(batch, (at, set()))
        batches[batch] = min(at, before), some | set(logs)

    def verdicts(self) -> Iterator[Verdict]:
        yield from self._of_the_logs()
        for (log, offset), deliveries in self._deliveries.items():
            yield from self._of_values(log, offset, deliveries)
            yield from self._of_repeats(log, offset, deliveries)
            yield from self._of_marks(log, offset, deliveries)
        yield from self._of_replays()
        yield from self._of_order()
        yield from self._of_commits()
        yield from self._of_runs_with_an_end()
        yield from self._of_deletions()
        if self._rules.complete:
            yield from self._of_what_is_missing()

    # -- breaks -----------------------------------------------------------------------------------

    def _what_was_in_flight(self) -> set[tuple[str, int, int, Log]]:
        """The batches of queries that a break may have found in flight, by partition.

        Those that a sink got after the break go to ``_planned_before``.
        """
        found = set()
        for (reader, run), batches in self._batches.items():
            ordered = [
                (at, batch, logs)
                for batch, (at, logs) in sorted(batches.items(), key=lambda item: item[1][0])
            ]
            for broken in self._breaks_of(reader, run):
                before = [one for one in ordered if one[0] <= broken.since]
                after = [one for one in ordered if one[0] > broken.since]
                unanswered = self._unanswered_since(broken)
                if broken.ends_the_run:
                    candidates = _last_until(before, unanswered)
                else:
                    every = {log for _, _, logs in ordered for log in logs}
                    of_log = [[one for one in before if log in one[2]] for log in every]
                    candidates = [one for some in of_log for one in _last_until(some, unanswered)]
                    for log in every:
                        for _, batch, logs in [one for one in after if log in one[2]][:1]:
                            for key in ((reader, run, batch, one) for one in logs):
                                since = max(broken.since, self._planned_before.get(key, 0.0))
                                self._planned_before[key] = since
                for _, batch, logs in candidates:
                    found |= {(reader, run, batch, log) for log in logs}
        return found

    #: So much later than the replicas the next coordinator takes commits, or is found.
    FOUND_S = 5.0

    def _unanswered_since(self, broken: Break) -> float:
        """Since when no coordinator may have taken a commit until the break; at the latest then."""
        since = broken.since
        for away in reversed(self._aways):
            if away.since <= broken.until and away.until + self.FOUND_S >= since:
                since = min(since, away.since)
        return since

    #: A batch's time is counted from its planning until Spark is known to have committed it.
    AROUND_THE_SINK_S = 3.0

    def _what_took_too_long(self) -> set[tuple[str, int, int, Log]]:
        """The batches during which others may have got the partitions, by their query's limits."""
        until: dict[tuple[str, int, int], float] = {}
        for deliveries in self._deliveries.values():
            for d in deliveries:
                until[d.attempt] = max(until.get(d.attempt, 0.0), d.completed)
        found = set()
        for (reader, run), batches in self._batches.items():
            limit = self._rules.limits.get(reader)
            if limit is None:
                continue
            for batch, (began, logs) in batches.items():
                took_s = until.get((reader, run, batch), float("inf")) - began
                if took_s > limit - self.AROUND_THE_SINK_S:
                    found |= {(reader, run, batch, log) for log in logs}
        return found

    def _breaks_of(self, reader: str, run: int) -> Iterator[Break]:
        for broken in self._breaks:
            if broken.reader in (None, reader) and broken.run in (None, run):
                yield broken

    def _is_broken_between(self, before: Delivered, one: Delivered) -> bool:
        """Whether a break of their reader may have come between two batches of one run."""
        return any(
            before.began <= broken.until and broken.since <= one.began
            for broken in self._breaks_of(one.reader, one.run)
        )

    #: So much later than the coordinator a member may learn that it has lost a partition.
    LEARNT_S = 60.0

    def _is_broken(self, one: Delivered, by: float = float("inf")) -> bool:
        """Whether a break may have come between the delivery and the group's commit of it.

        Parameters
        ----------
        one : Delivered
        by : float
            When the record came again. Of a query this does not matter: its batches have an order.
        """
        if one.reader not in self._rules.members:
            key = (*one.attempt, one.log)
            return key in self._in_flight or (
                key in self._planned_before and not self._came_too_late(one)
            )
        return any(
            broken.until >= one.began and broken.since <= by + self.LEARNT_S
            for broken in self._breaks_of(one.reader, one.run)
        )

    #: From the moment that a record is sent to the one at which somebody may have seen it; clocks.
    SEEN_AFTER_S = 0.3

    def _came_too_late(self, one: Delivered) -> bool:
        """Whether the record was sent when its reader stood still, or after that."""
        record = self._records.get((one.log, one.offset))
        since = self._planned_before.get((*one.attempt, one.log))
        if since is None or record is None or record.sent_at is None:
            return False
        return record.sent_at > since + self.SEEN_AFTER_S

    # -- what a log is ----------------------------------------------------------------------------

    def _of_the_logs(self) -> Iterator[Verdict]:
        transactions: dict[str, list[Produced]] = defaultdict(list)
        values: dict[tuple[str, str, str], Produced] = {}
        for record in self._produced:
            if record.transaction is not None:
                transactions[record.transaction].append(record)
            if not record.aborted:
                key = (record.log.topic, record.log.topic_id, record.value)
                if (first := values.setdefault(key, record)) is not record:
                    detail = f"{record.value!r} is at {first.log} {first.offset} as well"
                    yield _verdict("duplicate", record, "its producer", ONE_VALUE, detail)
        for name, records in transactions.items():
            aborted = [record for record in records if record.aborted]
            if aborted and len(aborted) < len(records):
                detail = f"{len(aborted)} of {len(records)} records aborted"
                yield _verdict("torn transaction", aborted[0], name, ALL_OR_NONE, detail)

        for log, rows in self._points.items():
            yield from self._of_a_source_partition(log, rows)

    def _of_a_source_partition(self, log: Log, rows: int) -> Iterator[Verdict]:
        """Its rows, once each (which all records are), in order, and as far as the point says."""
        there = sorted(
            (record for record in self._produced if record.log == log and not record.aborted),
            key=lambda record: record.offset,
        )
        numbers = [int(record.value.rpartition(":")[2]) for record in there]
        for missing in sorted(set(range(rows)) - set(numbers)):
            detail = f"no record has the row of this number; the restart point is {rows}"
            yield Verdict("lost write", log, missing, "the producer group", ALL_OR_NONE, detail)
        for record, number in zip(there, numbers, strict=True):
            if number >= rows:
                detail = f"row {number} is there, and the restart point is {rows}"
                yield _verdict(
                    "torn transaction", record, "the producer group", ALL_OR_NONE, detail
                )
        for before, record in pairwise(there):
            earlier, number = (int(r.value.rpartition(":")[2]) for r in (before, record))
            if number < earlier:
                detail = f"row {number} after row {earlier}"
                yield _verdict("nonmonotonic send", record, "the producer group", READ_ON, detail)

    # -- what a record is -------------------------------------------------------------------------

    def _of_values(self, log: Log, offset: int, deliveries: list[Delivered]) -> Iterator[Verdict]:
        record = self._records.get((log, offset))
        values = {d.value: d for d in deliveries}
        if record is not None:
            values.setdefault(record.value, deliveries[0])
        if len(values) > 1:
            for one in deliveries[:1]:
                detail = f"values {sorted(values)}"
                yield Verdict("inconsistent offsets", log, offset, one.who, ONE_VALUE, detail)
        if record is None and (log, offset) not in self._gone and self._is_known(log):
            one, detail = deliveries[0], "no log has or had a record there"
            yield Verdict("inconsistent offsets", log, offset, one.who, ONE_VALUE, detail)
        if self._rules.read_committed and record is not None and record.aborted:
            for one in deliveries:
                detail = f"of {record.transaction}"
                yield Verdict("aborted read", log, offset, one.who, COMMITTED_ONLY, detail)

    def _is_known(self, log: Log) -> bool:
        """Whether every record that it had is in the history."""
        return log.topic not in self._rules.forgets | self._anew

    # -- what may come again ----------------------------------------------------------------------

    def _of_repeats(self, log: Log, offset: int, deliveries: list[Delivered]) -> Iterator[Verdict]:
        for n, one in enumerate(deliveries):
            for before in deliveries[:n]:
                problem = self._why_not_again(before, one)
                if problem is not None:
                    promise, why = problem
                    detail = f"{before.who} had delivered it; {why}"
                    yield Verdict("duplicate", log, offset, one.who, promise, detail)
                    break

    def _why_not_again(self, before: Delivered, one: Delivered) -> tuple[str, str] | None:
        """Why the later delivery contradicts the docs, if it does: the promise and the reason."""
        is_same_run = (before.reader, before.run) == (one.reader, one.run)
        if is_same_run and not self._had_it_anew(before, one):
            return ONE_BATCH, "it had the record, and had not lost the partition since"
        if one.lost and not self._is_replay(one):
            return self._why_not_marked(before, one)
        if before.lost or one.lost:
            return None  # one of the two is marked, which is judged apart
        if self._is_replay(one):
            if before.reader == one.reader and before.batch == one.batch:
                if not self._is_broken(before):
                    return ONE_BATCH, "the batch was not in flight at any break"
                return None
            if before.reader != one.reader:
                if self._is_read_amid_a_replay(before, one):
                    return REPLAY_KEEPS, "the replay was under way"
                return None  # whose rows may lack the mark is judged apart
        moved_back = any(
            m.is_of(one.log) and m.is_back(one.offset) and before.completed <= m.at <= one.began
            for m in self._moves
        )
        if before.reader == one.reader and one.reader not in self._rules.members:
            if before.batch == one.batch and self._is_replay(before):
                return None  # the attempt that was given up has come to an end after all
            if not (moved_back and before.run == one.run):
                return CHECKPOINT_TOO, "the query itself has read on behind it; this is no replay"
        if moved_back:
            return None
        if not (self._is_broken(before, one.completed) or self._is_broken(one, one.completed)):
            if self._came_too_late(before) or self._came_too_late(one):
                return HANDS_OUT_NO_MORE, "it was sent when the planner had stood still"
            return ONE_BATCH, "it was not in flight at any break"
        if (seen := self._seen_past(one.log, one.offset, one.began)) is not None:
            ago = one.began - seen.at
            return COMMITTED_ONCE, f"the group had {seen.offset} {ago:.2f} s before the batch began"
        return None

    def _had_it_anew(self, before: Delivered, one: Delivered) -> bool:
        """Whether a run may have lost the partition, or the position, between two batches of it."""
        if before.attempt == one.attempt and one.reader not in self._rules.members:
            return False
        return self._is_broken_between(before, one) or any(
            m.is_of(one.log) and m.is_back(one.offset) and before.began <= m.at <= one.began
            for m in self._moves
        )

    def _why_not_marked(self, before: Delivered, one: Delivered) -> tuple[str, str] | None:
        """Why a row of a batch that is no replay contradicts the docs, though it is marked.

        It may have been planned before its partition was lost, and have begun when another had it.
        """
        if before.reader == one.reader:
            return CHECKPOINT_TOO, "the query itself has read on behind it; this is no replay"
        if not self._is_broken(one):
            return ONLY_IN_A_REPLAY, "marked lost, and this is no replay"
        return None

    #: A replay waits for others for a session and so long, or shorter with gaps.
    REPLAY_WAITS_S = 30.0

    def _is_read_amid_a_replay(self, other: Delivered, replay: Delivered) -> bool:
        """Whether another has read what a replay, which cannot have given up waiting, had begun."""
        if self._is_broken(other) or self._is_broken(replay) or other.completed <= replay.began:
            return False
        for one in (other, replay):
            if self._is_replay(one) and (
                one.reader in self._rules.live
                or one.began - self._began_at.get((one.reader, one.run), 0.0) > self.REPLAY_WAITS_S
            ):
                return False
        return True

    def _is_replay(self, one: Delivered) -> bool:
        """Whether Spark ran the batch again, by its checkpoint."""
        return self._replays.get((one.reader, one.run)) == one.batch

    def _seen_past(self, log: Log, offset: int, before: float) -> Seen | None:
        """A look at the group's offset past this one before that time, unless moved back since."""
        back = [m.at for m in self._moves if m.at < before and m.is_of(log) and m.is_back(offset)]
        # A look may have been under way at the time.
        since = max(back, default=float("-inf")) + self.SETTLED_S
        for seen in self._seen[log]:
            if seen.offset > offset and since < seen.at < before:
                return seen
        return None

    def _of_marks(self, log: Log, offset: int, deliveries: list[Delivered]) -> Iterator[Verdict]:
        """A row is marked if, and only if, somebody has delivered it without the mark."""
        for one in deliveries:
            others = [d for d in deliveries if d.attempt != one.attempt and not d.lost]
            if one.lost:
                moved = any(m.is_of(log) and m.at < one.began for m in self._moves)
                if not moved and not any(d.completed <= one.began for d in others):
                    detail = "marked lost, and nobody has delivered it without the mark"
                    yield Verdict("lost write", log, offset, one.who, MARKED, detail)
                elif (seen := self._seen_below(one)) is not None:
                    detail = f"marked lost, and the group had only {seen.offset} "
                    detail += f"{seen.at - one.completed:.2f} s later"
                    yield Verdict("lost write", log, offset, one.who, MARKED, detail)
            elif self._is_replay(one):
                foreign = [d for d in others if d.reader != one.reader and d.completed < one.began]
                began = one.began
                seen = self._seen_past(log, offset, began - self.SETTLED_S)
                if foreign and seen is not None:
                    detail = f"not marked; {foreign[0].who} has delivered it, and the group had "
                    detail += f"{seen.offset} {began - seen.at:.2f} s before"
                    yield Verdict("duplicate", log, offset, one.who, REPLAY_WAITS, detail)

    def _seen_below(self, marked: Delivered) -> Seen | None:
        """A look at the group's offset after a marked row, which it was not past, nor moved back.

        What live readers have committed beyond their gaps is not seen.
        """
        if self._rules.live:
            return None
        since = marked.completed + self.SETTLED_S  # a look may have been under way
        back = [
            m.at
            for m in self._moves
            if m.at > marked.began - self.SETTLED_S
            and m.is_of(marked.log)
            and m.is_back(marked.offset)
        ]
        until = min(back, default=float("inf"))
        looks = (seen for seen in self._seen[marked.log] if since < seen.at < until)
        return next((seen for seen in looks if seen.offset <= marked.offset), None)

    #: Marks are made when the batch is planned, which is before its sink gets it.
    SETTLED_S = 2.0

    # -- what a replay is -------------------------------------------------------------------------

    def _of_replays(self) -> Iterator[Verdict]:
        """Each has what the attempts before had, of those that a sink has completed."""
        attempts: dict[tuple[str, int], dict[int, dict[tuple[Log, int], Delivered]]] = {}
        for where, deliveries in self._deliveries.items():
            for d in deliveries:
                if d.reader not in self._rules.members:
                    runs = attempts.setdefault((d.reader, d.batch), {})
                    runs.setdefault(d.run, {})[where] = d
        for (reader, batch), runs in attempts.items():
            first, *others = sorted(runs)
            for run in others:
                if self._replays.get((reader, run)) == batch:
                    yield from self._of_a_replay(runs[first], runs[run])

    def _of_a_replay(
        self,
        first: Mapping[tuple[Log, int], Delivered],
        replay: Mapping[tuple[Log, int], Delivered],
    ) -> Iterator[Verdict]:
        one, again = next(iter(first.values())), next(iter(replay.values()))
        for log, offset in sorted(first.keys() ^ replay.keys()):
            if log.topic in self._anew or len(self._topic_ids[log.topic]) > 1:
                continue  # it reads by the topic's name
            if (log, offset) in replay:
                detail = f"run {one.run} has completed the batch without it"
                yield Verdict("inconsistent offsets", log, offset, again.who, SAME_RECORDS, detail)
            elif (log, offset) in self._records:  # it is not gone
                detail = f"run {one.run} has completed the batch with it, and the replay lacks it"
                yield Verdict("inconsistent offsets", log, offset, again.who, SAME_RECORDS, detail)

    # -- order ------------------------------------------------------------------------------------

    def _of_order(self) -> Iterator[Verdict]:
        """Of each run of a reader, live rows and those of gaps apart."""
        lanes: dict[tuple[str, int, Log, bool], list[Delivered]] = defaultdict(list)
        for (log, _), deliveries in self._deliveries.items():
            for d in deliveries:
                lanes[d.reader, d.run, log, d.catch_up].append(d)
        for (reader, _, _, catch_up), rows in lanes.items():
            rows.sort(key=lambda d: (d.began, d.batch, d.place))
            for before, one in pairwise(rows):
                if one.offset < before.offset:
                    yield from self._of_a_step_back(before, one)
                elif not catch_up and reader not in self._rules.live:
                    yield from self._of_a_skip(before, one)

    def _of_a_step_back(self, before: Delivered, one: Delivered) -> Iterator[Verdict]:
        if before.attempt != one.attempt and self._is_broken_between(before, one):
            return  # it had the partition anew in between
        if any(before.began < m.at < one.began for m in self._moves):
            return
        detail = f"after {before.offset} of batch {before.batch}"
        yield Verdict("nonmonotonic poll", one.log, one.offset, one.who, IN_ORDER, detail)

    def _of_a_skip(self, before: Delivered, one: Delivered) -> Iterator[Verdict]:
        for offset in range(before.offset + 1, one.offset):
            record = self._records.get((one.log, offset))
            if record is None or not self._is_to_be_read(record):
                continue
            others = self._deliveries.get((one.log, offset), ())
            if any(d.completed <= one.completed for d in others):
                continue
            if self._is_left_out(one.log, offset, one.completed):
                continue
            detail = f"between {before.offset} and {one.offset}; nobody had delivered it by then"
            yield Verdict("poll skip", one.log, offset, one.who, NOTHING_SKIPPED, detail)

    # -- what the group has -----------------------------------------------------------------------

    def _of_commits(self) -> Iterator[Verdict]:
        for log, looks in self._seen.items():
            for before, seen in pairwise(looks):
                moved = any(
                    before.at - 1 <= m.at <= seen.at + 1 and m.is_of(log) for m in self._moves
                )
                if seen.offset < before.offset and not moved:
                    detail = f"it was {before.offset}"
                    yield Verdict("commit back", log, seen.offset, "the group", FORWARD, detail)
            yield from self._of_commits_ahead(log, looks)

    def _of_commits_ahead(self, log: Log, looks: Sequence[Seen]) -> Iterator[Verdict]:
        """Each look: all below must have been delivered by then, without a mark."""
        ats: list[float] = []
        highest: list[int] = []  # the highest offset that was seen, over time
        for seen in looks:
            if not highest or seen.offset > highest[-1]:
                ats.append(seen.at)
                highest.append(seen.offset)
        for record in self._produced:
            if record.log != log or not self._is_to_be_read(record):
                continue
            past = bisect_right(highest, record.offset)
            if past == len(highest):
                continue
            if any(
                m.is_of(log) and m.leaves_out(record.offset) and m.at <= ats[past]
                for m in self._moves
            ):
                continue  # who has moved it has left something out
            deliveries = self._deliveries.get((log, record.offset), ())
            by = min((d.completed for d in deliveries if not d.lost), default=None)
            if by is not None and by > ats[past]:
                detail = f"the group had {highest[past]} {by - ats[past]:.2f} s before it was"
                detail += " delivered"
                yield _verdict("commit ahead", record, "the group", AFTER_SPARK, detail)

    # -- runs with an end -------------------------------------------------------------------------

    def _of_runs_with_an_end(self) -> Iterator[Verdict]:
        """Each that has ended by itself, unless another reader of the group was alive meanwhile."""
        for life in self._lives:
            if not life.has_ended:
                continue
            if life.trigger == "once" and self._replays.get((life.reader, life.run)) is not None:
                continue  # that batch was the one
            if not any(
                other.reader != life.reader
                and other.until > life.since
                and other.since < life.until
                for other in self._lives
            ):
                yield from self._of_a_run_with_an_end(life)

    def _of_a_run_with_an_end(self, life: Life) -> Iterator[Verdict]:
        ends = {
            log: max((one.offset for one in some if one.at < life.since), default=0)
            for log, some in self._ends.items()
        }
        for record in self._produced:
            log, offset = record.log, record.offset
            if offset >= ends.get(log, 0) or not self._is_to_be_read(record):
                continue
            deliveries = self._deliveries.get((log, offset), ())
            if any((d.reader, d.run) == (life.reader, life.run) for d in deliveries):
                continue
            looks = (s for s in self._seen[log] if s.at < life.until + self.SETTLED_S)
            if any(seen.offset > offset for seen in looks):
                continue
            detail = f"the run has not read it, though {ends[log]} was the end when it began"
            who = f"{life.reader} run {life.run}"
            yield _verdict("unseen", record, who, READ_TO_ITS_END, detail)

    # -- what is deleted --------------------------------------------------------------------------

    def _of_deletions(self) -> Iterator[Verdict]:
        """Nobody who has to fail then goes on behind what was deleted before it was read."""
        for one in self._deleted:
            log, offset = one.log, one.offset
            if any(not d.lost for d in self._deliveries.get((log, offset), ())):
                continue
            looks = self._seen[log]
            if not any(seen.offset <= offset and seen.at <= one.at for seen in looks):
                continue  # nobody had begun there
            for passed in self._passes(log, offset):
                if self._is_left_out(log, offset, passed.at) or self._began_anew(log, passed):
                    continue
                if self._may_go_on_without(one.at, passed.at):
                    continue
                by = passed.at + self.SETTLED_S
                if not any(r.names(log, offset) and r.at <= by for r in self._refused):
                    detail = "deleted, read by nobody, and named in no error; the group has "
                    detail += f"{passed.offset}"
                    yield Verdict("lost write", log, offset, "the group", FAILS_ON_LOSS, detail)
                    break
        for renewed in self._renewed:
            since, until, log = renewed.since, renewed.until, renewed.log
            refused = [r.at for r in self._refused if r.log.topic == log.topic]
            if any(since <= at <= until for at in refused):
                continue
            if self._had_begun(log, since) and not self._may_go_on_without(since, until):
                detail = "the topic was created anew, and no query has failed"
                yield Verdict("lost write", log, 0, "the group", FAILS_ON_RENEWAL, detail)

    def _passes(self, log: Log, offset: int) -> Iterator[Seen]:
        """The looks that found the group past the offset, as those before them had not."""
        was_past = False
        for seen in self._seen[log]:
            if (is_past := seen.offset > offset) and not was_past:
                yield seen
            was_past = is_past

    #: So long an attempt to move offsets may have had its effect, and gone without an answer.
    UNANSWERED_S = 30.0

    def _is_left_out(self, log: Log, offset: int, by: float) -> bool:
        """Whether somebody had moved the group's offsets past this one by then, and not back.

        A query that was there before they were moved back has that position in its checkpoint.
        """
        back = [m.at for m in self._moves if m.is_of(log) and m.is_back(offset) and m.at <= by]
        return any(
            m.is_of(log)
            and m.leaves_out(offset)
            and m.at <= by + self.UNANSWERED_S
            and all(at <= m.at or self._a_query_was_there(m.at, at) for at in back)
            for m in self._moves
        )

    def _began_anew(self, log: Log, passed: Seen) -> bool:
        """Whether the group had nothing, and was since then seen only where it is now."""
        for m in self._moves:
            if m.is_of(log) and m.offset is None and m.at <= passed.at + self.UNANSWERED_S:
                since = m.at + self.SETTLED_S
                looks = (seen for seen in self._seen[log] if since < seen.at < passed.at)
                if all(seen.offset >= passed.offset for seen in looks):
                    return True
        return False

    def _a_query_was_there(self, since: float, until: float) -> bool:
        """Whether a query ran in between, as far as is known."""
        lives = {(life.reader, life.since, life.until) for life in self._lives}
        lives |= {
            (reader, at, at)
            for (reader, _), batches in self._batches.items()
            for at, _ in batches.values()
        }
        return any(
            reader not in self._rules.members and began <= until and ended >= since
            for reader, began, ended in lives
        )

    #: So long a query may need to learn which of the topics of a name it reads.
    KNOWS_IDS_S = 3.0

    def _had_begun(self, log: Log, before: float) -> bool:
        """Whether somebody knew this topic, and not only its name."""
        by = before - self.KNOWS_IDS_S
        return any(
            one.topic == log.topic and one.topic_id == log.topic_id and deliveries[0].completed < by
            for (one, _), deliveries in self._deliveries.items()
        )

    def _may_go_on_without(self, since: float, until: float) -> bool:
        """Whether there was a reader meanwhile that does not fail."""
        return any(
            life.goes_on_without and life.since <= until and life.until >= since
            for life in self._lives
        )

    # -- what is missing --------------------------------------------------------------------------

    def _of_what_is_missing(self) -> Iterator[Verdict]:
        """A lost write: nobody will read it any more. Unseen: the group has not got there."""
        gone = {m.topic for m in self._moves if m.offset is None and m.topic is not None}
        for record in self._produced:
            if not self._is_to_be_read(record) or record.log.topic in gone:
                continue
            if any(not d.lost for d in self._deliveries.get((record.log, record.offset), ())):
                continue
            looks = self._seen[record.log]
            reached = looks[-1].offset if looks else 0
            # Each time that it went past the record, or for ever.
            bys = [seen.at for seen in self._passes(record.log, record.offset)] or [float("inf")]
            if all(self._is_left_out(record.log, record.offset, by) for by in bys):
                continue  # moving them forward meant leaving it out
            if reached > record.offset:
                detail = f"nobody has delivered it, and the group has {reached}"
                yield _verdict("lost write", record, "the group", NOTHING_SKIPPED, detail)
            else:
                detail = f"nobody has delivered it; the group has {reached}"
                yield _verdict("unseen", record, "the group", NOTHING_SKIPPED, detail)

    def _is_to_be_read(self, record: Produced) -> bool:
        return not (record.aborted and self._rules.read_committed)


def _verdict(name: Name, record: Produced, who: str, promise: str, detail: str) -> Verdict:
    return Verdict(name, record.log, record.offset, who, promise, detail)
