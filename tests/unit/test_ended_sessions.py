"""What brokers log when a session ends, as in Kafka 4.3."""

from __future__ import annotations

import datetime

from tests.chaos.ended_sessions import ended_sessions

_WHO = "[group-coordinator-event-processor-3] INFO org.apache.kafka.coordinator.group."
_WHO += "GroupMetadataManager - [GroupCoordinator id=1 topic=__consumer_offsets partition=1] "
LOG = f"""\
23:59:58.000 {_WHO}[GroupId g] Member m-0 joins the consumer group using the consumer protocol.
23:59:59.500 {_WHO}[GroupId g] Member m-1 fenced from the group because the member session expired.
00:00:00.500 {_WHO}Member q-2 in group g has failed, removing it from the group.
00:00:00.700 {_WHO}Member q-3 in group another has failed, removing it from the group.
"""


def test_both_protocols_and_midnight():
    began = datetime.datetime(2026, 11, 25, 23, 59, 50).timestamp()
    both = [(began + 9.5, "m-1"), (began + 10.5, "q-2")]
    assert list(ended_sessions(LOG, "g", began)) == both
    assert list(ended_sessions(LOG, "g", began + 10)) == [(began + 10.5, "q-2")]
    assert list(ended_sessions(LOG, "none", began)) == []
