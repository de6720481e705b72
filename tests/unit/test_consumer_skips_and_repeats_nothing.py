"""Two consumers of one group over a network that loses and delays, in any order.

The consumers are real; the broker and the applications are models written from KIP-848, KIP-983 and
``docs/consumer.md``. What must hold:

 1. The group's committed offset never moves back while the log has not become shorter.
 2. Nothing is committed by who does not own the partition, and nothing is sent after the loss is
    told.
 3. What an application has finished and said so comes again only after a loss or a kill, and only
    what the group had not confirmed by then.
 4. Below the group's committed offset every record that exists has been finished by somebody.
 5. Nothing is lost without a cause: an application that polls, over a network that answers, keeps
    what it has.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from model_application import (
    MAX_POLL_INTERVAL_S,
    REVOKE_TIMEOUT_S,
    SESSION_S,
    Application,
    Stint,
)
from model_log import PartitionLog, Record
from simulated_kafka import TOPIC, Broker, Fate, World

BOTH = [TopicPartition(TOPIC, n) for n in range(2)]
NAMES = range(2)
WAYS = ["commit_processed", "processed", "commit", "commit_async"]
REQUESTS = ["OffsetCommitRequest", "ConsumerGroupHeartbeatRequest", "FetchRequest"]

names = st.sampled_from(NAMES)
parts = st.sampled_from(BOTH)


class Consumers(RuleBasedStateMachine):
    #: What the consumers are given beside the usual.
    options: ClassVar[dict[str, Any]] = {}
    application: ClassVar[type[Application]] = Application
    keeps_metadata: ClassVar[bool] = False

    @initialize(before=st.integers(0, 8), running=st.integers(1, 2))
    def begin(self, before: int, running: int) -> None:
        logging.disable(logging.CRITICAL)
        self.world = World()
        self.open = ExitStack()
        self.open.enter_context(self.world.is_real())
        self.logs = {p: PartitionLog() for p in BOTH}
        self.broker = Broker(self.world, self.logs, SESSION_S, MAX_POLL_INTERVAL_S)
        self.broker.metadata_of = {} if self.keeps_metadata else None
        self.broker.on_commit = self.committed
        self.broker.on_send = self.sent
        self.applications: dict[int, Application | None] = dict.fromkeys(NAMES)
        self.processes = 0
        self.out_of_the_group: set[str] = set()
        self.broker.group.on_removed = lambda member: self.out_of_the_group.add(
            self.broker.client_of[member]
        )
        self.ended: list[Application] = []
        self.finished: set[Record] = set()
        self.stints_of: dict[Record, list[Stint]] = defaultdict(list)
        self.shortened: set[TopicPartition] = set()
        for log in self.logs.values():
            log.produce(before)
        for name in range(running):
            self.begins(name)
        self.all_work_for_a_while(3, "commit_processed")

    # -- applications -----------------------------------------------------------------------------

    @rule(name=names)
    def begins(self, name: int) -> None:
        if self.applications[name] is None:
            self.processes += 1
            self.applications[name] = self.application(
                f"c{name}-{self.processes}",
                self.broker,
                "consumer",
                self.delivered,
                **self.options,
            )

    @rule(name=names, timeout_s=st.sampled_from([0.0, 0.1, 0.5]))
    def polls(self, name: int, timeout_s: float) -> None:
        application = self.applications[name]
        if application is not None:
            application.poll(timeout_s)
            self.look_for_losses(application)

    @rule(name=names, timeout_s=st.floats(1, 1.5 * MAX_POLL_INTERVAL_S))
    def polls_for_long(self, name: int, timeout_s: float) -> None:
        self.polls(name, timeout_s)

    @rule(name=names, partition=parts, how=st.sampled_from(WAYS), number=st.integers(1, 4))
    def finishes(self, name: int, partition: TopicPartition, how: str, number: int) -> None:
        """In order."""
        application = self.applications[name]
        if application is not None and partition in application.stints:
            stint = application.stints[partition]
            self.finish(application, stint, how, sorted(stint.work)[:number])

    @rule(name=names, partition=parts, data=st.data())
    def finishes_in_any_order(
        self, name: int, partition: TopicPartition, data: st.DataObject
    ) -> None:
        application = self.applications[name]
        if application is not None and partition in application.stints:
            stint = application.stints[partition]
            if stint.work:
                offsets = data.draw(st.sets(st.sampled_from(sorted(stint.work)), min_size=1))
                self.finish(application, stint, "processed", sorted(offsets))

    def finish(self, application: Application, stint: Stint, how: str, offsets: list[int]) -> None:
        if offsets:
            finished = {offset: stint.work.pop(offset) for offset in offsets}
            self.finished |= set(finished.values())
            application.tell(stint.partition, how, finished)

    @rule(rounds=st.integers(1, 6), how=st.sampled_from(WAYS))
    def all_work_for_a_while(self, rounds: int, how: str) -> None:
        for _ in range(rounds):
            for name in NAMES:
                application = self.applications[name]
                self.polls(name, 0.2)
                for stint in list(application.stints.values() if application else ()):
                    self.finish(application, stint, how, sorted(stint.work))  # type: ignore[arg-type]

    @rule(
        name=names,
        how=st.sampled_from(WAYS),
        share=st.sampled_from([0.3, 0.5, 0.95, 1.1]),
        number=st.integers(1, 4),
    )
    def works_for_long_while_all_is_revoked(
        self, name: int, how: str, share: float, number: int
    ) -> None:
        """The deadlines of a revoke, and of polls, pass without a poll."""
        application = self.applications[name]
        others = [a for a in self.applications.values() if a and a is not application]
        if application is None or not others:
            return
        for log in self.logs.values():
            if not self.shortened:
                log.produce(number)
        self.polls(name, 0.2)
        for member in self.broker.group.heard:
            if self.broker.client_of[member] == others[0].client_id:
                self.broker.group.aim([member] * len(BOTH))
        for _ in range(3):
            self.polls(name, 0.5)
        self.world.sleep(share * MAX_POLL_INTERVAL_S)
        if share > 0.5:
            for other in NAMES:
                if other != name:
                    self.polls(other, 0.2)
        for stint in list(application.stints.values()):
            self.finish(application, stint, how, sorted(stint.work)[:number])

    @rule(name=names, how=st.sampled_from(WAYS[:2]), data=st.data())
    def a_late_worker_finishes(self, name: int, how: str, data: st.DataObject) -> None:
        """What was handed out before a loss or a revoke; the partition may be back."""
        application = self.applications[name]
        over = [stint for stint in application.past if stint.work] if application else []
        if application is not None and over:
            stint = data.draw(st.sampled_from(over))
            offsets = sorted(stint.work)[: data.draw(st.integers(1, 4))]
            finished = {stint.work.pop(offset) for offset in offsets}
            if application.tell_late(stint, how, offsets):
                self.finished |= finished
            else:
                stint.work.clear()  # undone

    @rule(name=names, partition=parts, share=st.floats(0, 1))
    def looks_elsewhere(self, name: int, partition: TopicPartition, share: float) -> None:
        """A seek, and another to where it was: as if there had been none."""
        application = self.applications[name]
        if application is not None and partition not in self.shortened:
            application.look_elsewhere(partition, int(self.logs[partition].end * share))

    @rule(name=names)
    def is_killed(self, name: int) -> None:
        application = self.applications[name]
        if application is not None:
            application.die()
            self.out_of_the_group.add(application.client_id)
            self.retire(name)

    @rule(name=names)
    def closes(self, name: int) -> None:
        application = self.applications[name]
        if application is not None:
            application.close()
            self.retire(name)

    def retire(self, name: int) -> None:
        application = self.applications[name]
        assert application is not None
        self.ended.append(application)
        self.applications[name] = None

    # -- surroundings -----------------------------------------------------------------------------

    @rule(seconds=st.floats(0.01, 1) | st.floats(1, 1.2 * MAX_POLL_INTERVAL_S))
    def time_passes(self, seconds: float) -> None:
        self.world.sleep(seconds)

    @rule(partition=parts, number=st.integers(1, 6))
    def records_are_produced(self, partition: TopicPartition, number: int) -> None:
        if partition not in self.shortened:  # by offsets alone a log that has grown again is whole
            self.logs[partition].produce(number)

    @rule(partition=parts, share=st.floats(0, 1))
    def a_log_becomes_shorter(self, partition: TopicPartition, share: float) -> None:
        """An unclean election; or, to the end, the topic is deleted and created anew."""
        log = self.logs[partition]
        applications = filter(None, self.applications.values())
        stints = [a.stints[partition] for a in applications if partition in a.stints]
        # What is finished later would be committed, beyond the end.
        if log.end and not any(stint.work for stint in stints):
            log.truncate(int(log.end * share))
            self.shortened.add(partition)
            for stint in stints:
                stint.unconfirmed.clear()  # so would be a failed commit, if it were repeated

    @rule(owners=st.lists(names, min_size=2, max_size=2))
    def the_group_moves_partitions(self, owners: list[int]) -> None:
        members = sorted(self.broker.group.heard)
        if members:
            self.broker.group.aim([members[o % len(members)] for o in owners])

    @rule(name=names)
    def is_fenced(self, name: int) -> None:
        application = self.applications[name]
        for member, client_id in self.broker.client_of.items():
            if application is not None and client_id == application.client_id:
                application.fenced_at = self.world.now
                self.broker.group.remove(member)

    @rule(
        name=names,
        request=st.sampled_from(REQUESTS),
        how=st.sampled_from(["lost", "unanswered", "slow", "slow"]),
        delay_s=st.floats(0.05, SESSION_S),
    )
    def a_request_goes_astray(self, name: int, request: str, how: str, delay_s: float) -> None:
        application = self.applications[name]
        if application is not None:
            self.broker.fates.append(Fate(application.client_id, request, how, delay_s))

    # -- the books --------------------------------------------------------------------------------

    def owners_of(self, partition: TopicPartition) -> set[str]:
        """For all that the coordinator knows."""
        return {self.broker.client_of[m] for m in self.broker.group.owners(partition.partition)}

    def sent(self, client_id: str, request: Any) -> None:
        if type(request).__name__ != "OffsetCommitRequest":
            return
        application = next(
            (a for a in self.applications.values() if a and a.client_id == client_id),
            None,
        )
        for topic in request.topics if application else ():
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                last = next(
                    (s for s in reversed(application.past) if s.partition == partition),
                    None,
                )  # type: ignore[union-attr]
                told_lost = partition not in application.stints and (  # type: ignore[union-attr]
                    last is not None and last.how_ended == "lost"
                )
                assert not told_lost, f"{client_id} commits {partition} after it was told the loss"

    def committed(
        self, client_id: str, partition: TopicPartition, before: int | None, offset: int
    ) -> None:
        assert client_id in self.owners_of(partition), (
            f"{client_id} commits {partition}, which is not its own"
        )
        if partition in self.shortened:
            return
        assert before is None or offset >= before, f"{partition}: {before} back to {offset}"
        for at, record in self.logs[partition].read(0, offset):
            assert record in self.finished, f"{offset} of {partition} is committed, {at} not done"

    def delivered(self, stint: Stint, offset: int, record: Record) -> None:
        if stint.partition not in self.shortened:
            for before in self.stints_of[record]:
                if record not in before.told:
                    continue
                assert before is not stint, f"{stint.partition} {offset} came twice in a row"
                if before.how_ended in ("lost", "killed", "closed"):
                    again = offset >= before.committed_then
                elif before.how_ended == "revoked":  # and killed or fenced before the last answer
                    again = before.client_id in self.out_of_the_group and (
                        offset >= self.broker.committed.get(stint.partition, 0)
                    )
                else:  # one of them does not know yet that it is fenced
                    both = {before.client_id, stint.client_id}
                    again = bool(
                        both - self.owners_of(stint.partition) or both & self.out_of_the_group
                    )
                assert again, f"{stint.partition} {offset} came again after {before.how_ended}"
        if stint not in self.stints_of[record]:
            self.stints_of[record].append(stint)

    def look_for_losses(self, application: Application) -> None:
        """Each loss that a poll told has a cause."""
        told, application.judged = (
            application.past[application.judged :],
            len(application.past),
        )
        for stint in told:
            if stint.how_ended != "lost":
                continue
            self.out_of_the_group.add(application.client_id)
            member = next(
                (m for m, c in self.broker.client_of.items() if c == application.client_id),
                "",
            )
            since = self.broker.group.unwanted_since.get((member, stint.partition.partition))
            overdue = since is not None and self.world.now - since >= REVOKE_TIMEOUT_S - 0.5
            disturbed_at = self.broker.disturbed_at.get(application.client_id, 0.0)
            assert (
                overdue
                or application.idled
                or self.world.now - max(disturbed_at, application.fenced_at) < 3 * SESSION_S
            ), f"{application.client_id} lost {stint.partition} without a cause"

    def teardown(self) -> None:
        """Left alone, the applications finish everything, and the group has all of it."""
        if not hasattr(self, "world"):
            return
        try:
            self.broker.fates.clear()
            if not any(self.applications.values()):
                self.begins(0)
            self.settle()
            for partition in self.shortened:  # whoever owns it now is where it ends
                self.logs[partition].produce(1)
            self.settle()
            for partition, log in self.logs.items():
                committed = self.broker.committed.get(partition, 0)
                assert committed == log.end, (
                    f"{partition} ends at {log.end}, the group has {committed}"
                )
                for offset, record in log.read(0, log.end):
                    assert record in self.finished, f"{offset} of {partition} was skipped"
            for name in NAMES:
                self.closes(name)
        finally:
            for net in list(self.world.nets):
                net.die()
            self.open.close()
            logging.disable(logging.NOTSET)

    def settle(self) -> None:
        """Until nothing is left to be done, and a while longer; or until nothing is finished."""
        idle = 0
        while idle < 20:
            done, finished = self.is_done(), len(self.finished)
            self.all_work_for_a_while(3, "commit_processed")
            if done:
                break
            idle = 0 if len(self.finished) > finished else idle + 1

    def is_done(self) -> bool:
        return all(self.broker.committed.get(p, 0) == log.end for p, log in self.logs.items())


@contextmanager
def a_history(machine: type[Consumers], before: int, running: int) -> Iterator[Consumers]:
    """A history step by step, and its end."""
    history = machine()
    try:
        history.begin(before, running)
        yield history
    finally:
        history.teardown()


def failures(history: Consumers) -> set[type[Exception]]:
    """The errors of the explicit commits of its applications, after the end."""
    return {type(error) for application in history.ended for error in application.failures}


def test_an_asynchronous_commit_that_was_lost_is_repeated_by_the_application() -> None:
    """The model finished records, and did not commit again when their commit had failed."""
    with a_history(Consumers, before=3, running=2) as history:
        history.records_are_produced(BOTH[0], 3)
        for name in NAMES:
            history.a_request_goes_astray(name, "OffsetCommitRequest", "lost", 1.0)
        history.all_work_for_a_while(3, "commit_async")
    assert failures(history) == {kafka_errors.RequestTimedOutError}


def commits_as_the_epoch_changes(machine: type[Consumers]) -> None:
    """An asynchronous commit arrives after the heartbeat that brings its member to a new epoch.

    The commit is refused. Histories of several machines failed in teardown because the model did
    not commit again.
    """
    with a_history(machine, before=0, running=2) as history:
        for partition in BOTH:
            history.records_are_produced(partition, 3)
        for name in NAMES:
            history.polls(name, 0.5)
        history.the_group_moves_partitions([0, 0])
        for name in NAMES:
            history.a_request_goes_astray(name, "ConsumerGroupHeartbeatRequest", "slow", 0.5)
        history.time_passes(0.2)  # now the heartbeats are on their way
        for name in NAMES:
            for partition in BOTH:
                history.finishes(name, partition, "commit_async", 3)
    assert failures(history) == {kafka_errors.StaleMemberEpochError}


def test_an_asynchronous_commit_of_a_former_epoch_is_repeated_by_the_application() -> None:
    commits_as_the_epoch_changes(Consumers)


def nothing_of_a_long_log_is_left(machine: type[Consumers]) -> None:
    """At the end there was more left than the model polled for: it stopped after a fixed number."""
    with a_history(machine, before=350, running=1):
        pass


def test_a_log_is_read_to_its_end_however_long_it_is() -> None:
    nothing_of_a_long_log_is_left(Consumers)


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(
    deadline=None,
    max_examples=histories(40),
    stateful_step_count=20,
    derandomize=ALWAYS_THE_SAME,
)
