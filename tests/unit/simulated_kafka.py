"""A Kafka without sockets, threads or waiting: real consumers against a model of a broker.

kafka-python lets its client be given from outside. Here every request that a consumer sends becomes
an event of a simulated world, which has one clock and one thread: while a consumer waits, time
jumps to whatever happens next, and the I/O loops of the other consumers run as they are due.
Everything above ``KafkaConnectionManager.send`` is real.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace as Fields
from typing import Any
from unittest import mock
from uuid import UUID

from consumer_protocol_coordinator import Coordinator, Partitions
from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.structs import TopicPartition
from model_log import Logs
from record_batches import Record, build

TOPIC = "t"
TOPIC_ID = UUID(int=1)
_LATENCY_S = 0.002


# -- the world ------------------------------------------------------------------------------------


class World:
    """The clock, what is on its way, and the I/O loops."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.nets: list[SimulatedNet] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        self.now += 1e-5  # who looks at the clock until it is time gets there
        return self.now

    def _clock_gettime(self, clock: int) -> float:
        return self.monotonic()

    def _uuid(self) -> UUID:
        return UUID(int=next(self._order))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def sleep(self, seconds: float) -> None:
        self.advance(self.now + seconds, lambda: False)

    def advance(self, until: float, is_enough: Callable[[], bool]) -> None:
        """Let time pass; ends early when it is enough."""
        until = max(until, self.now + 1e-6)  # what is less would be rounded to nothing
        while True:
            for net in list(self.nets):
                net.run_ready()
            if is_enough():
                return
            due = [net.next_timer() for net in self.nets]
            following = min([until, *due, *(e[0] for e in self._events[:1])])
            if following >= until and not (self._events and self._events[0][0] <= until):
                self.now = max(self.now, until)
                for net in list(self.nets):
                    net.run_ready()
                return
            self.now = max(self.now, following)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

    @contextmanager
    def is_real(self) -> Iterator[None]:
        """Time is this world's within, but for threads of other tests that are there already.

        A broker that is shared by the files of a process has such, which sleep. If they slept in
        here, they would run the I/O loops while this thread does.
        """
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}

        def in_here(ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given: (real if threading.get_ident() in others else ours)(*given)

        with ExitStack() as patches:
            for module, name, ours in (
                (time, "monotonic", self.monotonic),
                (time, "sleep", self.sleep),
                (time, "clock_gettime", self._clock_gettime),
                (uuid, "uuid4", self._uuid),
            ):
                real = getattr(module, name)
                patches.enter_context(mock.patch.object(module, name, in_here(ours, real)))
            yield


class _NoSockets:
    """A selector that waits for the world instead."""

    def __init__(self, net: SimulatedNet) -> None:
        self._net = net

    def select(self, timeout: float | None) -> list[Any]:
        net = self._net
        if timeout != 0 and net in net.world.nets:
            until = float("inf") if timeout is None else net.world.now + timeout
            net.world.advance(until, net.has_work)
        return []

    def get_map(self) -> dict[str, str]:
        return {"waits": "for the world"}

    def close(self) -> None:
        pass


class SimulatedNet(NetworkSelector):  # type: ignore[misc]
    """kafka-python's event loop, run by whoever waits."""

    def __init__(self, world: World) -> None:
        super().__init__(slow_task_threshold_secs=0)
        self._selector.close()
        self._wakeup_r.close()
        self._wakeup_w.close()
        self._selector = _NoSockets(self)
        self.world = world
        world.nets.append(self)

    def start(self) -> None:
        pass

    def wakeup(self) -> None:
        pass

    def next_timer(self) -> float:
        return float(self._scheduled[0][0]) if self._scheduled else float("inf")

    def has_work(self) -> bool:
        return bool(self._ready) or self.next_timer() <= self.world.now

    def run_ready(self) -> None:
        """Unless it is the one that waits, and runs itself."""
        while self.has_work() and not self._poll_lock.locked() and not self._closed:
            self._poll_once(0)

    def die(self) -> None:
        """The process is gone: nothing of it runs any more."""
        if self in self.world.nets:
            self.world.nets.remove(self)
        for task in list(self._pending_tasks):
            if not task.is_done:
                task.close()
        self._closed = True

    def close(self) -> None:
        super().close()
        if self in self.world.nets:
            self.world.nets.remove(self)


class SimulatedManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connections, of which there are none."""

    def __init__(self, net: SimulatedNet, broker: Broker, client_id: str, **config: Any) -> None:
        super().__init__(net, client_id=client_id, **config)
        self.broker = broker
        self.client_id = client_id

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = True) -> None:
        self.broker_version_data = BrokerVersionData((4, 0))
        self._bootstrap_future = Future().success(True)
        self.cluster.update_metadata(self.broker.metadata())
        self.cluster.start_refresh_loop()

    def get_connection(self, node_id: Any, **how: Any) -> None:
        pass

    def send(
        self, request: Any, node_id: Any = None, request_timeout_ms: float | None = None
    ) -> Future:
        if request.API_VERSION is None:
            request.API_VERSION = self.broker_version_data.api_version(request)
        answer = Future()
        timeout_ms = request_timeout_ms or self.config["request_timeout_ms"]
        self.broker.receive(self.client_id, self._net, request, answer, timeout_ms)
        return answer


# -- the broker -----------------------------------------------------------------------------------


@dataclass
class Fate:
    """What becomes of the next such request of a client."""

    client_id: str
    request: str
    how: str  # "lost", "unanswered", or "slow"
    delay_s: float = 0.0


class Group(Coordinator):
    """The coordinator of the consumer protocol, with sessions and commits."""

    def __init__(self, world: World, numbers: range, rebalance_timeout_s: float) -> None:
        super().__init__(world, rebalance_timeout_s)  # type: ignore[arg-type]
        self.world = world
        self.numbers = numbers
        self.heard: dict[str, float] = {}
        self.on_removed: Callable[[str], None] = lambda member: None
        #: Since when a member is to give up a partition.
        self.unwanted_since: dict[tuple[str, int], float] = {}

    def retarget(self, target: dict[Any, Partitions]) -> None:
        for member, before in self.target.items():
            for number in before - target.get(member, frozenset()):
                self.unwanted_since.setdefault((member, number), self.world.now)
        super().retarget(target)

    def owners(self, number: int) -> set[str]:
        """Who may own a partition, for all that the coordinator knows."""
        return {
            member
            for member, seat in self.seats.items()
            if number in seat.assigned | seat.to_be_revoked
        }

    def even_out(self) -> None:
        members = sorted(self.heard)
        self.aim([members[n % len(members)] for n in self.numbers] if members else [])

    def aim(self, owners: list[str]) -> None:
        self.retarget(
            {
                member: frozenset(
                    n for n, owner in zip(self.numbers, owners, strict=False) if owner == member
                )
                for member in self.heard
            }
        )

    def remove(self, member: str) -> None:
        self.seats.pop(member, None)
        if self.heard.pop(member, None) is not None:
            self.on_removed(member)
            self.even_out()

    def expire(self, session_s: float) -> None:
        self.fence_overdue()
        for member, at in list(self.heard.items()):
            if member not in self.seats or self.world.now - at >= session_s:
                self.remove(member)


class Broker:
    """One broker, which is everybody's leader and coordinator.

    Parameters
    ----------
    world, logs
        Its surroundings and its data.
    session_s, rebalance_timeout_s : float
        Of the group's members.
    """

    def __init__(
        self, world: World, logs: Logs, session_s: float, rebalance_timeout_s: float
    ) -> None:
        self.world = world
        self.logs = logs
        self.session_s = session_s
        self.group = Group(world, range(len(logs)), rebalance_timeout_s)
        self.committed: dict[TopicPartition, int] = {}
        #: Those of the last commits, once it is to keep them.
        self.metadata_of: dict[TopicPartition, str] | None = None
        self.fates: list[Fate] = []
        self.on_commit: Callable[[str, TopicPartition, int | None, int], None] = lambda *_: None
        self.on_send: Callable[[str, Any], None] = lambda *_: None
        self.client_of: dict[str, str] = {}  # by member id
        #: When a request of a client went astray last.
        self.disturbed_at: dict[str, float] = {}
        self._busy_until: dict[tuple[str, str], float] = {}

    def client(self, **config: Any) -> KafkaNetClient:
        """For the argument ``kafka_client`` of a consumer."""
        net = SimulatedNet(self.world)
        known = {k: v for k, v in config.items() if k in KafkaConnectionManager.DEFAULT_CONFIG}
        return KafkaNetClient(net=net, manager=SimulatedManager(net, self, **known))

    # -- the network ------------------------------------------------------------------------------

    def receive(
        self, client_id: str, net: SimulatedNet, request: Any, answer: Future, timeout_ms: float
    ) -> None:
        name = type(request).__name__
        self.on_send(client_id, request)
        fate = next((f for f in self.fates if f.client_id == client_id and f.request == name), None)
        if fate is not None:
            self.fates.remove(fate)
            self.disturbed_at[client_id] = self.world.now + fate.delay_s
        # One connection keeps the order, and those of the coordinator are not those of fetches.
        lane = client_id, "fetch" if name in ("FetchRequest", "MetadataRequest") else "group"
        sent_at = self.world.now
        how, delay_s = (fate.how, fate.delay_s) if fate else ("", 0.0)
        arrives = max(sent_at + _LATENCY_S, self._busy_until.get(lane, 0.0))
        if how == "slow":
            arrives += delay_s
        if name != "FetchRequest":
            self._busy_until[lane] = arrives

        def give_up() -> None:
            if not answer.is_done and net in self.world.nets:
                answer.failure(kafka_errors.RequestTimedOutError(f"{name} was not answered"))

        def arrive() -> None:
            wait_s, make = self._answer_to(client_id, request)
            if how != "unanswered":
                self.world.at(self.world.now + wait_s + _LATENCY_S, lambda: respond(make))

        def respond(make: Callable[[], Any]) -> None:
            if not answer.is_done and net in self.world.nets:
                answer.success(make())

        self.world.at(sent_at + timeout_ms / 1000, give_up)
        if how != "lost":
            self.world.at(arrives, arrive)

    def _answer_to(self, client_id: str, request: Any) -> tuple[float, Callable[[], Any]]:
        """How long the broker takes, and what makes the answer then."""
        self.group.expire(self.session_s)
        name = type(request).__name__
        if name == "FetchRequest":
            waits = not any(map(self._has_news, self._asked(request)))
            return (request.max_wait_ms / 1000 if waits else 0.0), lambda: self._fetch(request)
        handler: Mapping[str, Callable[[str, Any], Any]] = {
            "MetadataRequest": lambda *_: self.metadata(),
            "ApiVersionsRequest": lambda *_: Fields(
                finalized_features=[Fields(name="group.version", max_version_level=1)],
                api_keys=[Fields(api_key=68)],
            ),
            "FindCoordinatorRequest": lambda *_: Fields(
                coordinators=[Fields(error_code=0, node_id=0, host="broker", port=9092)]
            ),
            "DescribeConfigsRequest": lambda *_: self._session_timeout(),
            "ConsumerGroupHeartbeatRequest": self._heartbeat,
            "OffsetCommitRequest": self._commit,
            "OffsetFetchRequest": self._committed,
            "ListOffsetsRequest": self._list_offsets,
            "OffsetForLeaderEpochRequest": self._ends_of_epochs,
        }
        response = handler[name](client_id, request)
        return 0.0, lambda: response

    # -- what it says -----------------------------------------------------------------------------

    def metadata(self) -> Any:
        return Fields(
            API_VERSION=10,
            brokers=[(0, "broker", 9092, None)],
            controller_id=0,
            cluster_id="c",
            topics=[
                Fields(
                    name=TOPIC,
                    is_internal=False,
                    error_code=0,
                    topic_id=TOPIC_ID,
                    partitions=[
                        Fields(
                            partition_index=p.partition,
                            leader_id=0,
                            leader_epoch=-1,
                            replica_nodes=[0],
                            isr_nodes=[0],
                            offline_replicas=[],
                            error_code=0,
                        )
                        for p in self.logs
                    ],
                )
            ],
        )

    def _session_timeout(self) -> Any:
        setting = Fields(name="consumer.session.timeout.ms", value=str(int(self.session_s * 1000)))
        return Fields(results=[Fields(error_code=0, configs=[setting])])

    def _heartbeat(self, client_id: str, request: Any) -> Any:
        group, member = self.group, request.member_id
        self.client_of[member] = client_id
        if request.member_epoch < 0:
            group.remove(member)
            return Fields(error_code=0, error_message=None)
        if request.member_epoch == 0:
            group.seats.pop(member, None)
            new = member not in group.heard
            group.heard[member] = self.world.now
            if new:
                group.even_out()
        owned: Partitions | None = None
        if request.topic_partitions is not None:
            owned = frozenset(n for t in request.topic_partitions for n in t.partitions)
        everything = request.rebalance_timeout_ms != -1
        answer = group.heartbeat(member, request.member_epoch, owned, everything)
        if isinstance(answer, type):
            return Fields(error_code=answer.errno, error_message="")  # type: ignore[attr-defined]
        group.heard[member] = self.world.now
        epoch, assigned = answer
        topic = Fields(topic_id=TOPIC_ID, partitions=sorted(assigned or ()))
        return Fields(
            error_code=0,
            error_message=None,
            member_epoch=epoch,
            member_id=member,
            heartbeat_interval_ms=1_000,
            assignment=(
                None
                if assigned is None
                else Fields(topic_partitions=[topic] if topic.partitions else [])
            ),
        )

    def _commit(self, client_id: str, request: Any) -> Any:
        seat = self.group.seats.get(request.member_id)
        if seat is None:
            error: Any = kafka_errors.UnknownMemberIdError
        elif request.generation_id_or_member_epoch != seat.epoch:
            error = kafka_errors.StaleMemberEpochError
        else:
            error = kafka_errors.NoError
        if error is kafka_errors.NoError:
            for topic in request.topics:
                for one in topic.partitions:
                    partition = TopicPartition(topic.name, one.partition_index)
                    before = self.committed.get(partition)
                    self.on_commit(client_id, partition, before, one.committed_offset)
                    self.committed[partition] = one.committed_offset
                    if self.metadata_of is not None:
                        self.metadata_of[partition] = one.committed_metadata
        return Fields(
            topics=[
                Fields(
                    name=topic.name,
                    partitions=[
                        Fields(partition_index=one.partition_index, error_code=error.errno)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _committed(self, client_id: str, request: Any) -> Any:
        def found(number: int) -> Any:
            partition = TopicPartition(TOPIC, number)
            return Fields(
                partition_index=number,
                committed_offset=self.committed.get(partition, -1),
                committed_leader_epoch=-1,
                metadata=(self.metadata_of or {}).get(partition, ""),
                error_code=0,
            )

        asked = request.groups[0].topics if request.groups else request.topics
        topics = [
            Fields(name=t.name, partitions=list(map(found, t.partition_indexes))) for t in asked
        ]
        if not request.groups:
            return Fields(API_VERSION=7, error_code=0, topics=topics)
        return Fields(API_VERSION=8, groups=[Fields(error_code=0, topics=topics)])

    def _list_offsets(self, client_id: str, request: Any) -> Any:
        return Fields(
            API_VERSION=7,
            topics=[
                Fields(
                    name=TOPIC,
                    partitions=[
                        Fields(
                            partition_index=one.partition_index,
                            error_code=0,
                            offset=(
                                0
                                if one.timestamp == -2
                                else self.logs[TopicPartition(TOPIC, one.partition_index)].end
                            ),
                            timestamp=-1,
                            leader_epoch=-1,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in _named(request.topics)
            ],
        )

    def _ends_of_epochs(self, client_id: str, request: Any) -> Any:
        return Fields(
            topics=[
                Fields(
                    topic=TOPIC,
                    partitions=[
                        Fields(
                            partition=one.partition,
                            error_code=0,
                            leader_epoch=0,
                            end_offset=self.logs[TopicPartition(TOPIC, one.partition)].end,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in _named(request.topics)
            ]
        )

    # -- fetches ----------------------------------------------------------------------------------

    def _asked(self, request: Any) -> list[tuple[TopicPartition, int]]:
        return [
            (TopicPartition(TOPIC, one.partition), one.fetch_offset)
            for topic in request.topics
            for one in topic.partitions
        ]

    def _has_news(self, asked: tuple[TopicPartition, int]) -> bool:
        partition, offset = asked
        return self.logs[partition].end != offset

    def _fetch(self, request: Any) -> Any:
        return Fields(
            API_VERSION=12,
            error_code=0,
            throttle_time_ms=0,
            responses=[
                Fields(topic=TOPIC, partitions=[self._read(p, o) for p, o in self._asked(request)])
            ],
        )

    def _read(self, partition: TopicPartition, offset: int) -> Any:
        log = self.logs[partition]
        out_of_range = offset > log.end
        records = [] if out_of_range else log.read(offset, log.end)
        batch = build([Record(o, 0, None, str(r).encode()) for o, r in records]) if records else b""
        return Fields(
            partition_index=partition.partition,
            error_code=kafka_errors.OffsetOutOfRangeError.errno if out_of_range else 0,
            high_watermark=-1 if out_of_range else log.end,
            last_stable_offset=-1 if out_of_range else log.end,
            diverging_epoch=None,
            current_leader=None,
            records=batch,
            aborted_transactions=None,
            preferred_read_replica=-1,
        )


def _named(topics: Any) -> list[Any]:
    """kafka-python gives some requests plain pairs."""
    return [Fields(name=t[0], partitions=t[1]) if isinstance(t, tuple) else t for t in topics]
