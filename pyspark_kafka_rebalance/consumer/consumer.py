"""DeferredRevokeConsumer: a Kafka consumer whose revokes are requested now and completed later.

KIP-983: partitions that stay are read at full speed through the whole rebalance, and those to be
revoked are processed and committed first, outside any callback::

    consumer = DeferredRevokeConsumer("orders", group_id="g", bootstrap_servers=...)
    while True:
        result = consumer.poll_with_rebalance(timeout_ms=100)
        start_processing(result.records)
        consumer.commit_processed(offsets_of_what_is_processed())
        consumer.delay_revoke(p for p in result.to_be_revoked if still_processing(p))
        abort_processing(result.lost)

``ownership.py`` decides what is owned, to be revoked and lost. ``rebalancing.py`` executes that, in
the turns of ``polls.py``. ``hand_outs.py`` knows what may be committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..errors import OptionError
from ..transport.forks import leave_to_parent, refuse
from ..transport.secured_clients import net_client
from .catch_up import CatchUpOptions
from .catching_up import CatchingUp
from .committing_consumer import CommittingConsumer
from .configuration import checked_config
from .fetch_metadata import EndOffsets
from .kafka_python.coordinator import replace_coordinator
from .kafka_python.polling import (
    end_iteration,
    is_closed,
    iterate_with,
    leave_polling_to_parent,
    resume_what_was_begun,
    tell_before_taking,
    watch_fetches,
)
from .kafka_python.records import ReadableRecords, name_what_is_unreadable
from .membership.ownership import Ownership
from .membership.protocol_choice import chosen_protocol, membership_in
from .observer import Observed
from .offsets.checked_arguments import checked_partitions
from .poll_result import PollResult as PollResult
from .polls import Polls
from .progress.hand_outs import HandOuts
from .rebalance_listener import ListenerCalls
from .rebalancing import Rebalancing
from .taken import returns_what_it_takes

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import Self, Unpack

    from ..settings.typed_settings import (
        GroupProtocolName,
        KafkaConsumerSettings,
        ParallelRebalance,
    )

log = logging.getLogger(__name__)

#: Rows of one poll_arrow: about 10 MB of 100-byte records, and a few milliseconds of decoding.
_ARROW_POLL_RECORDS = 100_000


class DeferredRevokeConsumer(CommittingConsumer):
    """kafka-python's ``KafkaConsumer`` with KIP-983's deferred revoke.

    Everything of ``KafkaConsumer`` works as before (``seek``, ``pause``, ``position``, security
    settings, iteration, rebalance listeners, which run on the polling thread and may commit).

    Parameters
    ----------
    *topics : str
        Topics to subscribe to; or call ``subscribe`` (also by pattern).
    group_id : str
        Required.
    group_protocol : {"classic", "consumer", "auto"}
        The classic protocol with cooperative rebalancing (KIP-429, the default), the consumer
        group protocol (KIP-848: Apache Kafka 4.0 or later), or the latter where the brokers
        offer it. ``docs/consumer.md`` compares them.
    group_remote_assignor : str, optional
        Consumer protocol: the server-side assignor, such as ``"uniform"`` or ``"range"``; by
        default the broker's.
    defer_revoke : bool, default True
        False completes a revoke in the poll that learned of it, as consumers did before.
    revoke_timeout_ms : int, optional
        How long a revoke may be deferred; then the partitions that are not drained, and only
        those, are lost. Default and upper bound: ``max_poll_interval_ms``, after which other
        clients would leave the group altogether.
    parallel_rebalance : {None, "live", "ordered"}
        KIP-333: if a partition is assigned with a backlog, polls begin at the end of its log, and
        the backlog is read in parallel. "live" hands out both at once, apart from each other
        (``PollResult.catch_up``). "ordered" hands out the backlog first, which is the KIP's rule.
        None, the default: polls begin at the committed offset, and live records come after the
        backlog.
    enable_parallel_rebalance : bool, default False
        The KIP's own name: True is ``parallel_rebalance="ordered"``.
    catch_up_threshold : int, default 10,000
        More offsets than this behind the end are a backlog.
    catch_up_threshold_ms : int, optional
        Instead: a backlog is one whose next record is older than this.
    **config
        kafka-python's settings. ``heartbeat_interval_ms`` is 1000 by default, because a hand-over
        takes about one interval. ``enable_auto_commit`` is refused: it cannot know what is
        processed.

    Raises
    ------
    OptionError
        An option is missing or not allowed; raised before any network is touched.
    AuthenticationError
        A broker and this client do not accept each other; from the constructor or a poll.
    AuthorizationError, MembershipError
        From a poll: a permission is missing; the coordinator refuses this member for good.
    """

    def __init__(
        self,
        *topics: str,
        group_protocol: GroupProtocolName = "classic",
        group_remote_assignor: str | None = None,
        defer_revoke: bool = True,
        revoke_timeout_ms: int | None = None,
        parallel_rebalance: ParallelRebalance | None = None,
        enable_parallel_rebalance: bool = False,
        catch_up_threshold: int | None = None,
        catch_up_threshold_ms: int | None = None,
        **config: Unpack[KafkaConsumerSettings],
    ) -> None:
        catch_up = CatchUpOptions.checked(
            parallel_rebalance, enable_parallel_rebalance, catch_up_threshold, catch_up_threshold_ms
        )
        settings = checked_config(
            dict(config), group_protocol, group_remote_assignor, revoke_timeout_ms
        )
        settings.setdefault("kafka_client", net_client)
        super().__init__(*topics, **settings)
        try:
            protocol = chosen_protocol(self, group_protocol)
        except Exception:
            super().close(autocommit=False, timeout_ms=0)
            raise
        revoke_timeout_ms = revoke_timeout_ms or int(self.config["max_poll_interval_ms"])
        self._ownership = Ownership(revoke_timeout_ms / 1000, defer_revoke)
        io = replace_coordinator(self)
        self._io = io
        self._membership = membership_in(
            protocol,
            group_remote_assignor,
            io,
            self.config,
            revoking=lambda: self._ownership.gated,
            committable=lambda: self.assigned,
        )
        io.membership = self._membership
        if topics:
            io.metadata.refresh_now()
        else:
            io.metadata.forget_backoff()
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        self._ends = EndOffsets(read_committed=isolation is IsolationLevel.READ_COMMITTED)
        self._hand_outs = HandOuts(io, self._membership, self._ownership, self._not_returned)
        self._observed = self._membership.commits.observed = Observed()
        if catch_up is not None:
            self._catching_up = CatchingUp(
                catch_up, self, io, self._ownership, self._hand_outs.gaps, settings
            )
        self._listener = ListenerCalls(io.loop, io.subscription, self._group_id)
        rebalancing = Rebalancing(
            self._group_id,
            io.subscription,
            self._membership,
            self._ownership,
            self._hand_outs,
            self._ends,
            self._listener,
            revoke_timeout_ms,
            self._observed,
        )
        self._polls = Polls(
            self,
            super().poll,
            io,
            self._membership,
            self._ownership,
            rebalancing,
            self._listener,
            self._hand_outs,
            self._ends,
            self._metadata_of,
            self._observed,
            self._catching_up,
        )
        watch_fetches(self, self._answered)
        resume_what_was_begun(self)
        tell_before_taking(self, io.subscription.taking)
        iterate_with(self, self._iterated, io.subscription.taking)
        name_what_is_unreadable(self)
        leave_to_parent(self, DeferredRevokeConsumer._leave_to_parent)

    if TYPE_CHECKING:  # KafkaConsumer has these, but type checkers do not know it, or not exactly

        def __enter__(self) -> Self: ...

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

        def __iter__(self) -> Self: ...

    # -- KIP-983 ----------------------------------------------------------------------------------

    @returns_what_it_takes
    def poll(
        self,
        timeout_ms: float = 0,
        max_records: int | None = None,
        update_offsets: bool = True,
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Fetch records, as ``KafkaConsumer.poll`` does, and take part in the rebalance.

        Returns early, maybe with no records, when a revoke is requested or a partition is lost;
        ask ``get_to_be_revoked_partitions`` and ``get_lost_partitions`` after each poll.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        self._io.subscription.end_reading_ahead()
        return self._polls.poll_records(ReadableRecords, timeout_ms, max_records, update_offsets)

    @returns_what_it_takes
    def poll_with_rebalance(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> PollResult:
        """Poll for records and for what the rebalance wants, in one result (KIP-983, variant 1)."""
        self._io.subscription.end_reading_ahead()
        return self._polls.poll(ReadableRecords, timeout_ms, max_records)

    @returns_what_it_takes
    def poll_arrow(
        self,
        timeout_ms: float = 0,
        max_records: int = _ARROW_POLL_RECORDS,
        include_headers: bool = False,
    ) -> PollResult[pa.RecordBatch]:
        """Poll as ``poll_with_rebalance`` does, and get Arrow record batches.

        It makes no object per record, and is therefore many times as fast. It may take turns with
        the other polls.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int
            The limit for all rows together, whatever ``max_poll_records`` is.
        include_headers : bool
            Whether to add a column ``headers``.

        Returns
        -------
        PollResult
            ``records`` holds, by partition, a list of ``pyarrow.RecordBatch`` in offset order with
            the columns of ``pyspark_kafka_rebalance.fetch.columns.record_schema``.

        Raises
        ------
        OptionError
            A deserializer is configured: the columns hold bytes.
        CorruptRecordError
            A record batch is damaged.
        """
        form = self._arrow_form(include_headers)
        self._io.subscription.end_reading_ahead()
        return self._polls.poll(form, timeout_ms, max_records)

    @returns_what_it_takes
    def poll_membership(self) -> PollResult:
        """A poll without records: takes part in the rebalance, never waits and never fetches.

        For applications whose records come another way, such as executors that read offset ranges.
        """
        return self._polls.poll_membership()

    def wakeup(self) -> None:
        """End the running poll early, or else the next one; any thread may call this.

        As in Java, but the poll does not raise: it returns what it has, maybe no records.
        """
        self._io.subscription.ahead.woken.set()
        self._polls.woken.set()

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Delay the revoke of these partitions to the poll after the next.

        Returns
        -------
        bool
            False if one of them is no longer owned (lost); the others are delayed all the same.
        """
        asked = frozenset(checked_partitions("delay_revoke", partitions))
        with self._hand_outs.lock:
            self._ownership.delay(asked)
        return asked <= self.assigned and not self._membership.record.lost_of(asked)

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group at once, and join again with the next poll, which reports the loss.

        The same happens after ``max_poll_interval_ms`` without a poll. A static member sends
        nothing more, and the group gives it up when its session ends.
        """
        self._membership.leave_until_polled(reason)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Drain what is processed, leave the group, close the connections.

        From the end of the drain on, ``processed`` and ``commit_processed`` are refused. In a
        forked child of the process that made the consumer this does nothing.

        Parameters
        ----------
        autocommit : bool
            A parameter of ``KafkaConsumer.close``; there is no auto-commit here.
        timeout_ms : float, optional
            The limit for all of that together; default ``request_timeout_ms``.
        """
        if is_closed(self):
            return
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        deadline = time.monotonic() + timeout_ms / 1000
        if self._grouped():
            try:
                self._listener.revoked(self.assigned)  # it may commit
                self._listener.raise_failure()
            except Exception:
                log.exception("group %s: the rebalance listener failed", self._group_id)
            try:
                while not self._hand_outs.end():
                    if not self.drain(max(0.0, (deadline - time.monotonic()) * 1000)):
                        log.warning("group %s: closed with commits outstanding", self._group_id)
                        break
            except Exception:
                log.exception("group %s: closing without a full drain", self._group_id)
            self._hand_outs.end(give_up=True)
        if self._catching_up is not None:
            self._catching_up.close()
        if (observer := self._observed.by) is not None:
            observer.closed()
        left_ms = max(100.0, (deadline - time.monotonic()) * 1000)
        super().close(autocommit=False, timeout_ms=left_ms)

    def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """``KafkaConsumer.subscribe``; a change makes the member join at once."""
        super().subscribe(topics, pattern, listener)
        self._membership.on_metadata_update()  # for fewer topics kafka-python asks for no metadata

    def unsubscribe(self) -> None:
        """Leave the group and give up every partition, once what is processed is committed.

        Waits for the commits for at most the session timeout; what is left then is delivered again.
        """
        if self._grouped():
            try:
                if not self.drain(self.config["session_timeout_ms"]):
                    log.warning("group %s: unsubscribed with commits outstanding", self._group_id)
            except Exception:
                log.exception("group %s: unsubscribed without a full drain", self._group_id)
        super().unsubscribe()
        self._membership.commits.forget_all()  # what another thread added while this one left
        with self._hand_outs.lock:
            self._hand_outs.forget_all()
            self._ownership.forget_all()
        self._polls.forget_all()
        ahead = self._io.subscription.ahead
        ahead.forget(ahead.buffered())

    def _not_returned(self) -> None:
        end_iteration(self)
        self._polls.not_returned()

    def _iterated(self, timeout_ms: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records that the library's iterator returns one by one."""
        self._io.subscription.end_reading_ahead()
        return self._polls.poll_records(ReadableRecords, timeout_ms, None, False)

    def _arrow_form(self, include_headers: bool) -> Callable[..., Any]:
        for option in ("key_deserializer", "value_deserializer"):
            if self.config[option] is not None:
                raise OptionError(
                    option, self.config[option], "no value with poll_arrow, which returns bytes"
                )
        from .arrow_records import ArrowForm

        return ArrowForm(include_headers, self._observed)

    def _answered(self, node_id: Any, asked: Collection[TopicPartition], response: Any) -> None:
        self._ends.answered(node_id, asked, response)
        if (observer := self._observed.by) is not None:
            observer.fetched(response)

    def _leave_to_parent(self) -> None:
        """In a forked child: refuse to poll and to commit, and close without leaving the group."""
        leave_polling_to_parent(self)
        calls: tuple[tuple[object, tuple[str, ...]], ...] = (
            (self, ("drain", "refuse_iteration_of_two")),  # __next__ begins with the latter
            (self._polls, ("poll", "poll_records", "poll_membership")),
        )
        for owner, names in calls:
            for name in names:
                setattr(owner, name, refuse)
        self._hand_outs.refuse_all()

    @property
    def _group_id(self) -> str:
        return str(self.config["group_id"])

    def _grouped(self) -> bool:
        return self._io.subscription.subscribed
