"""Who takes over in mid-gap (KIP-333), and gives back: static members, Java, a tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from consumer_events import MemberState
from gaps_and_live import LIVE, ORDERED, Seen, commit_foreign, killed, produced, values
from group_members import held, owns, poll_until, wait_until
from handed_out_records import told
from kafka import KafkaAdminClient
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition
from verifiable_group import Member, java_command

from pyspark_kafka_rebalance import PartitionsLostError
from tests.verifiable_consumer.options import COOPERATIVE

BOTH_MODES = pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])


# -- static members -------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("session_timeout_ms", [40_000])  # nobody may take its place meanwhile
@pytest.mark.parametrize("how", ["closed", "fenced"])
def test_a_static_member_that_restarts_in_mid_gap_goes_on_there(
    kafka, topic_name, group_id, consumers, protocol, options, how
):
    if (how, protocol) == ("fenced", "consumer"):
        pytest.skip("there the one that comes second is refused")
    kafka.create_topic(topic_name, partitions=2)
    both = [TopicPartition(topic_name, n) for n in range(2)]
    commit_foreign(kafka, group_id, dict.fromkeys(both, 0))
    other = consumers(topic_name, **options, group_instance_id="other")
    first = consumers(topic_name, **options, group_instance_id="restarts")
    poll_until(lambda: owns(other, 1)() and owns(first, 1)(), first, other)
    [kept], [moved] = other.assignment(), first.assignment()
    first.close()
    produced(kafka, topic_name, 1_000)  # 500 each
    first = consumers(topic_name, **options, group_instance_id="restarts")
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 120, max_records=40)
    handed_out = sorted(seen.gaps + seen.live)
    assert handed_out[0] == 0
    done = handed_out[:100]
    first.processed(moved, *done[:60], *done[70:])  # ten are still worked on
    if how == "closed":
        first.close()
    else:
        assert first.drain(10_000)
        assert told(first, moved), "what is processed behind the ten"
    again = consumers(topic_name, **options, group_instance_id="restarts")
    seen = Seen(again)
    seen.until(lambda: len(seen.gaps + seen.live) >= 410)
    assert again.assignment() == {moved}
    assert other.assignment() == {kept}
    assert sorted(seen.gaps + seen.live) == [*range(60, 70), *range(100, 500)]
    again.processed(moved, *seen.gaps, *seen.live)
    assert again.drain(10_000)
    assert again.committed(moved) == 500


# -- Java's consumer ------------------------------------------------------------------------------


class Java:
    """A Java member of the group, which leaves when it has consumed so many records."""

    def __init__(self, kafka, topic, group_id, protocol, work: Path, max_messages: int) -> None:
        command = [*java_command(), "--bootstrap-server", kafka.bootstrap_servers]
        command += ["--topic", topic, "--group-id", group_id, "--group-protocol", protocol]
        command += ["--max-messages", str(max_messages)]
        if protocol == "classic":
            settings = work / "classic.properties"
            settings.write_text("heartbeat.interval.ms=500\n")
            command += ["--session-timeout", "6000", "--assignment-strategy", COOPERATIVE]
            command += ["--command-config", str(settings)]
        state = MemberState(consumer_protocol=protocol == "consumer")
        self.events: list[dict] = []
        self.member = Member(
            "java", state, command, work / "java.log", lambda _, event: self.events.append(event)
        )

    def __enter__(self) -> Java:
        return self

    def __exit__(self, *exception: object) -> None:
        self.member.end()

    @property
    def has_left(self) -> bool:
        return any(event["name"] == "shutdown_complete" for event in self.events)

    def ranges(self) -> dict[int, list[range]]:
        """What it consumed of each partition, poll by poll."""
        found: dict[int, list[range]] = {}
        for event in self.events:
            if event["name"] == "records_consumed":
                for part in event["partitions"]:
                    consumed = range(part["minOffset"], part["maxOffset"] + 1)
                    found.setdefault(part["partition"], []).append(consumed)
        return found


def test_javas_consumer_takes_a_partition_over_in_mid_gap_and_gives_it_back(
    kafka, topic_name, group_id, protocol, consumers, tmp_path
):
    kafka.create_topic(topic_name, partitions=2)
    both = [TopicPartition(topic_name, n) for n in range(2)]
    commit_foreign(kafka, group_id, dict.fromkeys(both, 0))
    for p in both:
        kafka.produce(topic_name, values(2_000), partition=p.partition)
    ours = consumers(topic_name, **LIVE)
    processed: dict[TopicPartition, list[int]] = {p: [] for p in both}
    since: dict[TopicPartition, list[int]] = {p: [] for p in both}

    def poll(max_records: int) -> None:
        result = ours.poll_with_rebalance(timeout_ms=20, max_records=max_records)
        for found in (result.catch_up, result.records):
            for p, records in found.items():
                offsets = [record.offset for record in records]
                processed[p] += offsets
                since[p] += offsets
                ours.processed(p, *offsets)

    def polled(done, max_records=50):
        def turn() -> bool:
            poll(max_records)
            return done()

        return turn

    wait_until(polled(lambda: all(len(done) >= 100 for done in processed.values())), "it reads")
    for p in both:
        kafka.produce(topic_name, values(30), partition=p.partition)
    wait_until(polled(lambda: all(2_029 in done for done in processed.values())), "live ones too")
    with Java(kafka, topic_name, group_id, protocol, tmp_path, max_messages=700) as java:
        # Without records, so that the gaps are not done before Java has joined, however late.
        wait_until(lambda: ours.poll_membership() and len(ours.assignment()) == 1, "Java's has one")
        [moved] = set(both) - ours.assignment()
        before = sorted(processed[moved])
        assert before == [*range(len(before) - 30), *range(2_000, 2_030)]
        since[moved] = []
        wait_until(polled(lambda: java.has_left and owns(ours, 2)(), 1), "it gave it back")
        [(partition, polls)] = java.ranges().items()
    assert partition == moved.partition
    assert polls[0][0] == len(before) - 30, "the lowest that is not processed"
    assert sum(map(len, polls)) == 700
    given_back_at = polls[-1][-1] + 1
    [kept] = set(both) - {moved}
    left = 2_030 - given_back_at
    wait_until(
        polled(lambda: len(since[moved]) >= left and len(processed[kept]) >= 2_030), "all is read"
    )
    assert sorted(processed[kept]) == list(range(2_030)), "nothing twice"
    assert sorted(since[moved]) == list(range(given_back_at, 2_030)), "what Java did not know of"
    assert ours.drain(10_000)
    assert [ours.committed(p) for p in both] == [2_030, 2_030]


# -- the group's tools ----------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("to", [20, 400, 505, 510], ids=["below", "in-gap", "above", "at-the-end"])
def test_a_tool_sets_the_group_s_offset_in_mid_gap(
    kafka, topic, group_id, committed_at, consumers, options, to
):
    """Whatever we have told beyond goes with the metadata."""
    produced(kafka, topic, 500)
    partition = committed_at(50)
    first = consumers(topic, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 200, max_records=50)
    produced(kafka, topic, 10)
    seen.until(lambda: options is ORDERED or 509 in seen.live, max_records=15)
    first.processed(partition, *sorted(seen.gaps + seen.live)[30:])
    assert first.drain(10_000)
    assert told(first, partition), "nothing is processed beyond, so this shows nothing"
    first.close()
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.alter_group_offsets(group_id, {partition: OffsetAndMetadata(to, "", -1)})
    second = consumers(topic, **options)
    seen = Seen(second)
    produced(kafka, topic, 1)
    seen.until(lambda: len(seen.gaps + seen.live) >= 511 - to)
    assert sorted(seen.gaps + seen.live) == list(range(to, 511))
    second.processed(partition, *seen.gaps, *seen.live)
    assert second.drain(10_000)
    assert second.committed(partition) == 511


# -- a commit by hand on its way ------------------------------------------------------------------


@pytest.mark.parametrize("arrives", [True, False], ids=["answer-held", "request-held"])
def test_a_commit_by_hand_of_an_assignment_that_is_over_says_nothing_of_the_next(
    kafka, topic, committed_at, consumers, arrives
):
    """It named records that have been handed out again since, and are being processed."""
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=100)
    with held(member, OffsetCommitRequest, answer=arrives) as holding:
        before = member.commit_async({partition: OffsetAndMetadata(90, "", -1)})
        assert holding.wait(10)
        killed(member)
        wait_until(lambda: bool(member.poll_with_rebalance(timeout_ms=20).lost), "it is lost")
        seen = Seen(member)
        # Where the group is: at 90 if the request has arrived.
        seen.until(lambda: len(seen.gaps) >= 100, max_records=100)
        reached = 90 if arrives else 0
        assert seen.gaps[0] == reached
        produced(kafka, topic, 5)
        seen.until(lambda: 504 in seen.live, max_records=50)
        assert not before.is_done
        since = member.commit_async({partition: OffsetAndMetadata(505, "", -1)})
    wait_until(lambda: before.is_done and since.is_done, "the answers")
    assert arrives or isinstance(before.exception, PartitionsLostError)
    assert since.succeeded()
    assert member.committed(partition) == reached
    assert member.unprocessed() == {partition}
    killed(member)
    heir = Seen(consumers(topic, **LIVE)).until_gaps(500 - reached)
    assert heir.gaps == list(range(reached, 500))
