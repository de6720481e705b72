"""Every public exception of the package. All derive from :class:`KafkaRebalanceError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

#: How many characters of a value an error quotes: enough to find it, few enough to fit a screen.
_QUOTED = 200


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions for an error message: sorted, as in "orders-0, orders-2"."""
    return ", ".join(f"{p.topic}-{p.partition}" for p in sorted(partitions))


class KafkaRebalanceError(Exception):
    """Base class of every error that this package itself raises."""


class OptionError(KafkaRebalanceError, ValueError):
    """An option is missing, unknown, or has a value that is not allowed.

    Raised before any network access: by ``load()`` for the Spark source, by the constructor for the
    clients. Only problems that no option's text shows are raised later: a ``checkpointLocation``
    that is not the query's, partitions that a batch must name or that do not exist.

    Parameters
    ----------
    option : str
        The option's name as the user writes it.
    value : object
        The given value; ``None`` if the option is missing.
    allowed : str
        The accepted values, as a phrase; an alternative, if there are none.
    problem : str, optional
        The problem, if no value would be accepted; shown instead of the value.
    """

    def __init__(
        self, option: str, value: object, allowed: str, problem: str | None = None
    ) -> None:
        self.option = option
        self.value = value
        self.allowed = allowed
        self.problem = problem
        quoted = repr(value)
        if len(quoted) > _QUOTED:
            quoted = f"{quoted[:_QUOTED]}… ({len(quoted)} characters)"
        given = "is missing" if value is None else f"has the value {quoted}"
        said = f"{given}; allowed: {allowed}" if problem is None else f"{problem}: {allowed}"
        super().__init__(f"option {option!r} {said}")

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (type(self), (self.option, self.value, self.allowed, self.problem))

    @property
    def problems(self) -> tuple[OptionError, ...]:
        """Each thing that is wrong, as an error of its own; this one, if there is only one."""
        return (self,)


class SeveralOptionsError(OptionError):
    """Several options are wrong; the text has all problems, numbered.

    ``option``, ``value``, ``allowed`` and ``problem`` are the first one's.

    Parameters
    ----------
    problems : sequence of OptionError
        Two or more.
    """

    def __init__(self, problems: Sequence[OptionError]) -> None:
        first = problems[0]
        super().__init__(first.option, first.value, first.allowed, first.problem)
        self._problems = tuple(problems)
        numbered = (f"({n}) {problem}" for n, problem in enumerate(problems, start=1))
        self.args = (f"{len(problems)} problems: {'; '.join(numbered)}",)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (type(self), (self._problems,))

    @property
    def problems(self) -> tuple[OptionError, ...]:
        """Each thing that is wrong, in the order in which they were found."""
        return self._problems


class OffsetFormatError(KafkaRebalanceError, ValueError):
    """The checkpoint has an offset that this version neither wrote nor can read."""


class DataLossError(KafkaRebalanceError):
    """Records that were to be read are no longer in Kafka (``failOnDataLoss=true``)."""


class MembershipError(KafkaRebalanceError):
    """The group cannot be joined, or the coordinator refuses this member for good."""


class AuthenticationError(KafkaRebalanceError):
    """A broker or this client rejects the other: credentials, mechanism, certificates."""


class AuthorizationError(KafkaRebalanceError):
    """This client's principal lacks a permission; names the resource and the permission."""


class PartitionsLostError(KafkaRebalanceError):
    """A commit names partitions that this member has lost; nothing was committed for them."""


class TransactionAbortedError(KafkaRebalanceError):
    """A transaction was not committed, or had ended before the call; its records are never read.

    To continue, a producer group reads the source again from the restart points; a ``Producer``
    repeats the transaction.

    Parameters
    ----------
    reason : str
        Why it was aborted.
    restart_points : dict of int to str or None
        The source partitions that a producer group's member owns, with their last committed restart
        points; empty for a ``Producer``.
    """

    def __init__(self, reason: str, restart_points: dict[int, str | None]) -> None:
        self.reason = reason
        self.restart_points = restart_points
        super().__init__(f"the transaction was aborted: {reason}")

    def __reduce__(self) -> tuple[type[TransactionAbortedError], tuple[str, dict[int, str | None]]]:
        return (type(self), (self.reason, self.restart_points))


class TransactionInDoubtError(KafkaRebalanceError):
    """It is not known whether a transaction was committed, and cannot be found out.

    Its commit was sent twice, the first got no answer, the second was refused, and neither the
    transaction's records nor its group's offsets show the outcome. Read the output with
    ``read_committed`` before you write again.
    """


class UnreadableRecordError(KafkaRebalanceError):
    """A poll met records that it cannot read; raised again until the position is past them.

    Attributes
    ----------
    topic, partition : str, int
        Where they were fetched.
    offset : int
        The first offset that cannot be read.
    next_offset : int or None
        Where to seek to continue after them; None if that is unknown.
    reason : str
        The cause.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, reason: str, next_offset: int | None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
        self.next_offset = next_offset
        super().__init__(self._says())

    def _says(self) -> str:
        return f"unreadable record in {self.topic}-{self.partition} at offset {self.offset}"


class CorruptRecordError(UnreadableRecordError):
    """A record batch does not decode or its CRC is wrong.

    Parameters
    ----------
    topic, partition : str, int
        Where it was fetched.
    offset : int
        Base offset of the record batch, or the fetch position if even that is unreadable.
    reason : str
        The cause.
    next_offset : int, optional
        The offset after the batch, according to its header; None if the header makes no sense.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, reason: str, next_offset: int | None = None
    ) -> None:
        super().__init__(topic, partition, offset, reason, next_offset)

    def _says(self) -> str:
        return (
            f"corrupt record batch in {self.topic}-{self.partition} at offset {self.offset}: "
            f"{self.reason}"
        )

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[str, int, int, str, int | None]]:
        values = (self.topic, self.partition, self.offset, self.reason, self.next_offset)
        return (type(self), values)


class RecordDeserializationError(UnreadableRecordError):
    """A deserializer raised the cause of this error; the next record is at ``next_offset``.

    Parameters
    ----------
    topic, partition, offset : str, int, int
        Where the record is.
    reason : str
        The deserializer's error, as text.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason, offset + 1)

    def _says(self) -> str:
        return (
            f"the record in {self.topic}-{self.partition} at offset {self.offset} cannot be "
            f"deserialized: {self.reason}"
        )

    def __reduce__(self) -> tuple[type[RecordDeserializationError], tuple[str, int, int, str]]:
        return (type(self), (self.topic, self.partition, self.offset, self.reason))


class RecordTooLargeError(KafkaRebalanceError):
    """A record is larger than a request may be (``max.request.size``); it was not sent.

    Parameters
    ----------
    topic, partition : str, int
        Where it was to go.
    size : int
        The most bytes that it can take in a request, before compression.
    limit : int
        How many are allowed.
    """

    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.size = size
        self.limit = limit
        super().__init__(
            f"a record for {topic}-{partition} takes {size:,} bytes in a request; allowed: "
            f"{limit:,} (max.request.size)"
        )

    def __reduce__(self) -> tuple[type[RecordTooLargeError], tuple[str, int, int, int]]:
        return (type(self), (self.topic, self.partition, self.size, self.limit))


class UnsupportedBrokerError(KafkaRebalanceError):
    """The broker does not support a protocol or version that was asked for."""
