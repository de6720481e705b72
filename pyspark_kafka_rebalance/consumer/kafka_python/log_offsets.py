"""ListOffsets: where logs start and end, and their offsets by timestamp.

Each leader is asked once.

kafka-python's look-up retries at once until every leader has answered or its time is up, with
metadata that it does not renew: one deleted partition keeps it from returning anything. It has no
isolation level for a single request, and takes 5 ms for a thousand partitions; a planner requests
offsets at every trigger.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition
from kafka.util import Timer

from ..offsets.found_records import RecordTime

if TYPE_CHECKING:
    from .io_loop import IoLoop
    from .topic_metadata import TopicMetadata

log = logging.getLogger(__name__)

_OfTopic = ListOffsetsRequest.ListOffsetsTopic
_OfPartition = _OfTopic.ListOffsetsPartition

#: The last version that is not flexible: it takes a third of the time to encode. Later ones support
#: tiered storage and, from v7 on, the highest timestamp.
_HIGHEST_VERSION, _OF_HIGHEST_TIMESTAMP = 5, 7

_T = TypeVar("_T")


#: The requested kind of offset (None: by timestamp), the node, and the isolation level.
_Asked = tuple[OffsetSpec | None, int, IsolationLevel]


@dataclass(frozen=True, slots=True)
class _Question:
    """A request, and its entry for each partition; making one takes longer than encoding it.

    The entries include partitions that were requested before.
    """

    about: _Asked
    partitions: list[TopicPartition]
    request: ListOffsetsRequest
    entries: dict[TopicPartition, Any]


class LogOffsets:
    """Sends ListOffsets to the leaders for one client; any thread may call it.

    Parameters
    ----------
    manager : KafkaConnectionManager
        The manager of the client's connections.
    loop : IoLoop
        Sends the requests.
    metadata : TopicMetadata
        Knows the leaders.
    """

    def __init__(
        self, manager: KafkaConnectionManager, loop: IoLoop, metadata: TopicMetadata
    ) -> None:
        self._manager = manager
        self._loop = loop
        self._metadata = metadata
        # The last question of each kind, to be sent again: mostly it is the same. Questions by
        # timestamp are changed for that, so they are not in here while in flight.
        self._questions: dict[_Asked, _Question] = {}

    def ask(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        timeout_ms: float,
    ) -> dict[TopicPartition, int]:
        """The first offset of each log, or the one after its last, by ``spec``.

        Partitions without a known leader, or whose leader does not answer, are left out; then new
        metadata are requested.

        Raises
        ------
        TopicAuthorizationFailedError
            Names the topics.
        KafkaError
            Another error that is not retriable.
        """
        found: dict[TopicPartition, int] = self._loop.run(
            self._ask,
            partitions,
            lambda leader, led: self._of_all((spec, leader, isolation), led),
            attrgetter("offset"),
            timeout_ms,
        )
        return found

    def begin_ask(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        timeout_ms: float,
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Ask as :meth:`ask`; the returned function waits for the answer or the error."""
        asked = self._loop.spawn(
            self._ask,
            partitions,
            lambda leader, led: self._of_all((spec, leader, isolation), led),
            attrgetter("offset"),
            timeout_ms,
        )

        def answer() -> dict[TopicPartition, int]:
            found: dict[TopicPartition, int] = self._loop.run(self._loop.wait_for, asked, None)
            return found

        return answer

    def first_at(
        self,
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        timeout_ms: float,
    ) -> dict[TopicPartition, RecordTime | None]:
        """The first record of each log with this timestamp or a later one; None if there is none.

        Raises errors, and leaves out partitions, as :meth:`ask` does.
        """
        found: dict[TopicPartition, RecordTime | None] = self._loop.run(
            *self._by_time(timestamps, isolation, timeout_ms)
        )
        return found

    def begin_first_at(
        self,
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        timeout_ms: float,
    ) -> Callable[[], dict[TopicPartition, RecordTime | None]]:
        """Ask as :meth:`first_at`; the returned function waits for the answer or the error."""
        asked = self._loop.spawn(*self._by_time(timestamps, isolation, timeout_ms))

        def answer() -> dict[TopicPartition, RecordTime | None]:
            found: dict[TopicPartition, RecordTime | None]
            if asked.succeeded():  # already there: do not wait for the loop, which may be busy
                found = asked.value
            else:  # answered within the time, counted from when it was asked
                found = self._loop.run(self._loop.wait_for, asked, None)
            return found

        return answer

    def latest(
        self, partitions: Collection[TopicPartition], isolation: IsolationLevel, timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """As :meth:`first_at`, but the record with the highest timestamp.

        Brokers must be 3.0 or later (IncompatibleBrokerVersion).
        """
        found: dict[TopicPartition, RecordTime | None] = self._loop.run(
            self._ask,
            partitions,
            lambda leader, led: self._of_all((OffsetSpec.MAX_TIMESTAMP, leader, isolation), led),
            _record_time,
            timeout_ms,
        )
        return found

    def _by_time(
        self,
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        timeout_ms: float,
    ) -> tuple[Any, ...]:
        """The coroutine of :meth:`first_at`, and its arguments."""
        return (
            self._ask,
            timestamps,
            lambda leader, led: self._of_each((None, leader, isolation), led, timestamps),
            _record_time,
            timeout_ms,
        )

    async def _ask(
        self,
        partitions: Collection[TopicPartition],
        question: Callable[[int, list[TopicPartition]], _Question],
        take: Callable[[Any], _T],
        timeout_ms: float,
    ) -> dict[TopicPartition, _T]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, leader in self._metadata.leaders(partitions).items():
            by_leader[leader].append(partition)
        timer = Timer(timeout_ms)
        answers = []
        for leader, led in by_leader.items():
            asked = question(leader, led)
            answers.append((asked, self._manager.send(asked.request, node_id=leader)))
        found: dict[TopicPartition, _T] = {}
        for asked, answer in answers:
            try:
                response = await self._loop.wait_for(answer, timer.timeout_ms)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.info("a leader did not return log offsets (ListOffsets): %r", error)
            else:
                self._questions[asked.about] = asked
                found.update(_told(response, asked.partitions, take))
        if len(found) < len(partitions):
            self._metadata.refresh()
        return found

    def _of_all(self, about: _Asked, partitions: list[TopicPartition]) -> _Question:
        """A question that asks the same of each partition."""
        known = self._questions.get(about)
        if known is not None and known.partitions == partitions:
            return known
        spec = about[0]
        assert spec is not None
        return _question(about, dict.fromkeys(partitions, int(spec)), partitions)

    def _of_each(
        self,
        about: _Asked,
        partitions: list[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
    ) -> _Question:
        """A question that asks each partition by its own timestamp."""
        known = self._questions.pop(about, None)
        if known is None or known.partitions != partitions:
            return _question(about, timestamps, partitions, known.entries if known else {})
        for partition in partitions:
            known.entries[partition].timestamp = int(timestamps[partition])
        return known


def _question(
    about: _Asked,
    timestamps: Mapping[TopicPartition, int],
    partitions: list[TopicPartition],
    known: Mapping[TopicPartition, Any] = MappingProxyType({}),
) -> _Question:
    """Make a question, from the entries of an answered one where there are any."""
    by_topic: dict[str, list[Any]] = defaultdict(list)
    spec, _, isolation = about
    least = max(1, ListOffsetsRequest.min_version_for_isolation_level(isolation))
    if spec is OffsetSpec.MAX_TIMESTAMP:
        least = _OF_HIGHEST_TIMESTAMP
    entries = dict(known)  # also for others, which may be asked for again
    for found in partitions:
        topic, number = found
        timestamp = int(timestamps[found])
        entry = entries.get(found)
        if entry is None:
            entry = _OfPartition(
                partition_index=number, current_leader_epoch=-1, timestamp=timestamp
            )
        else:
            entry.timestamp = timestamp
        entries[found] = entry
        by_topic[topic].append(entry)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[_OfTopic(name=topic, partitions=found) for topic, found in by_topic.items()],
        min_version=least,
        max_version=max(least, _HIGHEST_VERSION),
    )
    return _Question(about, partitions, request, entries)


def _record_time(told: Any) -> RecordTime | None:
    return RecordTime(told.offset, told.timestamp) if told.offset >= 0 else None


def _told(
    response: Any, asked: Collection[TopicPartition], take: Callable[[Any], _T]
) -> dict[TopicPartition, _T]:
    """The answers, keyed by the question's own partition objects: no new ones are made."""
    answers: dict[str, dict[int, _T]] = defaultdict(dict)
    refused = set()
    for topic in response.topics:
        name, told = topic.name, answers[topic.name]
        told.update({a.partition_index: take(a) for a in topic.partitions if a.error_code == 0})
        if len(told) == len(topic.partitions):
            continue
        for answer in topic.partitions:
            error = kafka_errors.for_code(answer.error_code)
            if error is kafka_errors.TopicAuthorizationFailedError:
                refused.add(name)
            elif answer.error_code != 0:
                log.info(
                    "%s-%d: the broker did not return the offset: %s",
                    name,
                    answer.partition_index,
                    error.__name__,
                )
    if refused:
        raise kafka_errors.TopicAuthorizationFailedError(refused)
    return {p: answers[p.topic][p.partition] for p in asked if p.partition in answers[p.topic]}
