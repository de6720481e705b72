"""Topics of a plan that are deleted and created anew; which of them a record or an offset is of."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka

from .events import Deleted, Log, Renewed
from .plan_input import Input, ProducingPlainly
from .random_plans import Plan

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: So long a query may take to know that a topic was created anew: it asks every five seconds.
KNOWN_AFTER_S = 15.0


class Renewal(NamedTuple):
    """A topic was deleted; by ``until`` every query knows that there is another."""

    topic: str
    since: float
    until: float


class RenewedTopics:
    """The topics, and what sends records to them; there may be none.

    What one of them gets is sent by a producer of its own, which ends before the topic is deleted:
    a value tells in which of the topics of this name it was.
    """

    def __init__(self, kafka: LocalKafka, topics: Mapping[str, int], plan: Plan) -> None:
        self._kafka = kafka
        self._topics = topics
        self._plan = plan
        self._renewals: list[Renewal] = []
        self._sent: list[Input] = []
        self._input: ProducingPlainly | None = None

    def __enter__(self) -> Self:
        if self._topics:
            partitions = [
                TopicPartition(t, n) for t, count in self._topics.items() for n in range(count)
            ]
            given = Input(prefix=f"{len(self._renewals)}-")
            self._sent.append(given)
            servers = self._kafka.bootstrap_servers
            rate = self._plan.rate / 4
            chance = Random(self._plan.seed)
            self._input = ProducingPlainly(servers, lambda: partitions, given, rate, chance)
            self._input.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._input is not None:
            self._input.__exit__()

    def stop(self) -> None:
        """Send no more."""
        if self._input is not None:
            self._input.stop()
            self._input = None

    def create_anew(self, topic: str, quiet_s: float) -> None:
        """Delete a topic with all that was sent to it, and create it again.

        Parameters
        ----------
        topic : str
        quiet_s : float
            So long before, nothing is sent to it any more: all of it may be read then.
        """
        self.stop()
        time.sleep(quiet_s)
        since = time.time()
        self._kafka.delete_topic(topic)
        self._kafka.create_topic(topic, partitions=self._topics[topic])
        self._renewals.append(Renewal(topic, since, time.time() + KNOWN_AFTER_S))
        log.info("%s is created anew", topic)
        self.__enter__()

    def wait_until_known(self) -> None:
        """Until then the group may have offsets of an old topic."""
        if self._renewals:
            time.sleep(max(0.0, self._renewals[-1].until + 1 - time.time()))

    def what_was_deleted(self) -> list[Deleted | Renewed]:
        """The first topic of each name, with its records."""
        if not self._renewals:
            return []
        topic, since, until = self._renewals[0]
        given = self._sent[0]
        return [
            Renewed(since, until, Log(topic, "0", 0)),
            *(
                Deleted(since, Log(topic, "0", given.sent[value][0].partition), offset)
                for value, offset in given.acknowledged.items()
            ),
        ]

    def log_of(self, topic: str, partition: int, value: str) -> Log:
        """Where a value was sent to."""
        return Log(topic, value.partition("-")[0] if topic in self._topics else "", partition)

    def log_at(self, at: float, partition: TopicPartition) -> Log | None:
        """Whose committed offset was seen then; None while that is not clear."""
        if partition.topic not in self._topics:
            return Log(partition.topic, "", partition.partition)
        number = which_of_its_name(at, self._renewals)
        return None if number is None else Log(partition.topic, str(number), partition.partition)


def which_of_its_name(at: float, renewals: Iterable[Renewal]) -> int | None:
    """How often the topic had been created anew by then; None while a query may not know it."""
    some = list(renewals)
    if any(one.since <= at <= one.until for one in some):
        return None
    return sum(one.until < at for one in some)
