"""What a history consists of: what logs had, what readers delivered, and what happened to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Log(NamedTuple):
    """A partition of one topic; a topic that is created anew is another one."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}" + (f" ({self.topic_id})" if self.topic_id else "")


@dataclass(frozen=True)
class Produced:
    """A record that a log has or had.

    Attributes
    ----------
    aborted : bool
        Its transaction is.
    sent_at : float or None
        When it was sent, if known: nobody has seen it before.
    """

    log: Log
    offset: int
    value: str
    transaction: str | None = None
    aborted: bool = False
    sent_at: float | None = None


@dataclass(frozen=True)
class Delivered:
    """A record that a reader's sink has completed.

    Attributes
    ----------
    reader, run, batch : str, int, int
        Who, in which of its lives, in which batch. Batches of a query keep their ids in a replay.
    began, completed : float
        When the sink got the batch, and when it was done with it.
    lost, catch_up : bool
        What the row says.
    place : int
        Of the row in its batch.
    """

    log: Log
    offset: int
    value: str
    reader: str
    run: int
    batch: int
    began: float
    completed: float
    lost: bool = False
    catch_up: bool = False
    place: int = 0

    @property
    def attempt(self) -> tuple[str, int, int]:
        """What is delivered together."""
        return self.reader, self.run, self.batch

    @property
    def who(self) -> str:
        return f"{self.reader} run {self.run} batch {self.batch}"


@dataclass(frozen=True)
class Started:
    """A run of a query began; ``replays`` is the batch that Spark runs again, by its checkpoint."""

    reader: str
    run: int
    replays: int | None = None


@dataclass(frozen=True)
class Began:
    """The sink of a query got a batch with rows of these partitions, whatever came of it."""

    at: float
    reader: str
    run: int
    batch: int
    logs: frozenset[Log]


@dataclass(frozen=True)
class Seen:
    """The group's committed offset, as the coordinator told it at this time."""

    at: float
    log: Log
    offset: int


@dataclass(frozen=True)
class Break:
    """What may leave a batch of a reader in flight.

    Attributes
    ----------
    since, until : float
        A death is a moment. Of a session that ended: from the last sign of life on.
    reader, run : str or None, int or None
        None: it is not known whose.
    why : str
        Killed, failed, stopped in mid-batch, session ended, partition deleted.
    ends_the_run : bool
        Otherwise the reader goes on, and has lost partitions.
    """

    since: float
    until: float
    reader: str | None
    run: int | None = None
    why: str = "killed"
    ends_the_run: bool = True


@dataclass(frozen=True)
class Away:
    """A broker was killed, restarted or stood still, which may have coordinated the group.

    ``until`` is when all replicas were in sync again.
    """

    since: float
    until: float


@dataclass(frozen=True)
class Moved:
    """Somebody has moved or deleted the group's offsets, or deleted the topic.

    Attributes
    ----------
    at : float
        Just before.
    topic, partition : str or None, int or None
        None: all.
    offset : int or None
        None: the group has none any more, or with a topic the topic is deleted.
    """

    at: float
    topic: str | None = None
    offset: int | None = None
    partition: int | None = None

    def is_of(self, log: Log) -> bool:
        return self.topic in (None, log.topic) and self.partition in (None, log.partition)

    def is_back(self, offset: int) -> bool:
        """Whether the group did not have this offset any more."""
        return self.offset is None or self.offset <= offset

    def leaves_out(self, offset: int) -> bool:
        """Whether this offset is below where it was moved to."""
        return self.offset is not None and self.offset > offset


@dataclass(frozen=True)
class Life:
    """A run of any reader, from its order to begin to its end.

    Attributes
    ----------
    trigger : str
        ``once`` and ``availableNow`` have an end.
    has_ended : bool
        By itself and without an error, as a run with an end should.
    goes_on_without : bool
        What is gone that it was to read: a member, or a query with ``failOnDataLoss=false``.
    """

    reader: str
    run: int
    since: float
    until: float
    trigger: str = "always"
    has_ended: bool = False
    goes_on_without: bool = False


@dataclass(frozen=True)
class Deleted:
    """A record that a log had; ``at`` is just before it was deleted, by whomever."""

    at: float
    log: Log
    offset: int


@dataclass(frozen=True)
class Renewed:
    """A topic was deleted and created anew; by ``until`` every query knows.

    Attributes
    ----------
    log : Log
        Any partition of the old one.
    """

    since: float
    until: float
    log: Log


@dataclass(frozen=True)
class Refused:
    """A query failed and said that records are gone that it was to read.

    Attributes
    ----------
    since, until : int, int or None
        Their offsets; None: to the end of what was there.
    """

    at: float
    reader: str
    run: int
    log: Log
    since: int
    until: int | None = None

    def names(self, log: Log, offset: int) -> bool:
        mine = self.log.topic == log.topic and self.log.partition == log.partition
        return mine and self.since <= offset and (self.until is None or offset < self.until)


@dataclass(frozen=True)
class End:
    """A partition had all records below this offset, as readers of the group are told."""

    at: float
    log: Log
    offset: int


@dataclass(frozen=True)
class RestartPoint:
    """What a producer group has committed of a source partition: rows ``0`` to ``rows - 1``.

    The row's number is what its value ends with, after a colon. All of them are in this log.
    """

    log: Log
    rows: int


Event = (
    Produced
    | Delivered
    | RestartPoint
    | Started
    | Began
    | Seen
    | Break
    | Away
    | Moved
    | Life
    | End
    | Deleted
    | Renewed
    | Refused
)
