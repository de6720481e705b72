"""Plans for one kind of event each, whose names say what happens: ``plans --named hang,reset``."""

from __future__ import annotations

from .deleting_plans import DELETING_PLANS
from .random_plans import (
    BROKERS,
    GOES_ON,
    LATE,
    LIMIT_MS,
    PRODUCERS,
    SESSION_S,
    TOPICS,
    Fault,
    Plan,
    Reader,
)

_LIMITED = (("maxBatchDurationMs", LIMIT_MS),)
_IMPATIENT = (("revokeTimeoutMs", LIMIT_MS),)
_LIVE = (("parallelRebalance", "live"), ("catchUpThreshold", "20"))
_STATIC = (("kafka.group.instance.id", "q1"),)
_GAPS = (
    ("parallelRebalance", "live"),
    ("catchUpThreshold", "20"),
    ("maxCatchUpOffsetsPerTrigger", "30"),
)

NAMED = {
    **DELETING_PLANS,
    # Beyond maxBatchDurationMs, beyond revokeTimeoutMs while a third query joins, and till a kill.
    "hang": Plan(
        seed=1,
        protocol="consumer",
        readers=(
            Reader("q1", options=_LIMITED),
            Reader("q2", options=_IMPATIENT, knows_checkpoint=False),
            Reader(LATE, joins=True),
        ),
        faults=(
            Fault(4.0, "hang", "q1", 10.0),
            Fault(5.0, "hang", "q2", 12.0),
            Fault(6.0, "join", LATE),
            Fault(18.0, "hang", "q1", 16.0),
            Fault(19.0, "leave", LATE),
            Fault(25.0, "kill", "q1", 1.0),
        ),
        lasts_s=26.0,
    ),
    # One alone in its group, and one beside a member that is killed: in this protocol, what
    # that one had stays its own until its session has ended.
    "ends": Plan(
        seed=2,
        protocol="consumer",
        readers=(
            Reader("q1", group="alone", trigger="availableNow"),
            Reader("q2", trigger="availableNow", knows_checkpoint=False),
            Reader("m0", "member"),
        ),
        faults=(
            Fault(3.0, "kill", "q1", 0.0),
            Fault(8.0, "fail after", "q1", 0.0),
            Fault(10.0, "kill", "m0", 12.0),
            Fault(23.0, "stop", "q2", 1.0),
        ),
        lasts_s=24.0,
    ),
    "once": Plan(
        seed=3,
        protocol="classic",
        readers=(
            Reader("q1", group="alone", trigger="once"),
            Reader("q2", trigger="once", knows_checkpoint=False),
            Reader("m0", "member"),
        ),
        faults=(
            Fault(4.0, "fail before", "q1", 0.0),
            Fault(6.0, "kill", "m0", 12.0),
            Fault(9.0, "kill", "q1", 0.0),
        ),
        lasts_s=18.0,
    ),
    # Three queries and a member, of which two come and go.
    "late": Plan(
        seed=4,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("m0", "member"),
            Reader(LATE, joins=True, knows_checkpoint=False),
            Reader("q4", joins=True),
        ),
        faults=(
            Fault(1.0, "join", LATE),
            Fault(4.0, "join", "q4"),
            Fault(7.0, "leave", LATE),
            Fault(10.0, "vanish", "q4"),
            Fault(12.0, "join", LATE),
        ),
        lasts_s=14.0,
    ),
    "reset": Plan(
        seed=5,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("q2", knows_checkpoint=False),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(("assign", "all"),)),
        ),
        faults=(
            Fault(4.0, "to beginning", "g"),
            Fault(5.0, "delete", "alone"),
            Fault(8.0, "delete", "g"),
            Fault(12.0, "to end", "g"),
            Fault(13.0, "to beginning", "alone"),
        ),
        lasts_s=16.0,
    ),
    "compact": Plan(
        seed=7,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2"), Reader("m0", "member")),
        faults=(
            Fault(6.0, "hang", "q1", 8.0),
            Fault(7.0, "kill", "q2", 8.0),
            Fault(9.0, "slow", "m0", 4.0),
            Fault(18.0, "kill", "q1", 8.0),
        ),
        lasts_s=28.0,
        compacts=True,
    ),
    "trim": Plan(
        seed=6,
        protocol="consumer",
        readers=(
            Reader("q1", options=(GOES_ON,)),
            Reader("q2", options=(GOES_ON,)),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(GOES_ON, ("assign", "all"))),
        ),
        faults=(
            Fault(1.0, "slow", "q1", 5.0),
            Fault(2.0, "trim", "a"),
            Fault(4.0, "kill", "q2", 4.0),
            Fault(6.0, "stop", "q4", 3.0),
            Fault(7.0, "trim", "b"),
            Fault(8.0, "trim", "a"),
            Fault(10.0, "slow", "m0", 4.0),
            Fault(12.0, "trim", "a"),
        ),
        lasts_s=16.0,
    ),
    # Under running queries; those that are restarted afterwards may pass over the new topic.
    "anew": Plan(
        seed=8,
        protocol="classic",
        readers=(
            Reader("q1", options=(GOES_ON,)),
            Reader("q2", options=(GOES_ON,), knows_checkpoint=False),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(GOES_ON, ("assign", "all"))),
        ),
        faults=(
            Fault(1.0, "kill", "m0", 1.0),
            Fault(12.0, "anew", "n"),
            Fault(13.0, "slow", "q2", 2.0),
        ),
        lasts_s=26.0,
    ),
    "anew-consumer": Plan(
        seed=9,
        protocol="consumer",
        readers=(
            Reader("q1", options=(GOES_ON,)),
            Reader("q2", options=(GOES_ON, ("pattern", "all"))),
        ),
        faults=(
            Fault(12.0, "slow", "q1", 5.0),
            Fault(13.0, "anew", "n"),
            Fault(24.0, "anew", "n"),
        ),
        lasts_s=36.0,
    ),
    # Nothing happens: what is wrong all the time.
    "calm": Plan(
        seed=20,
        protocol="consumer",
        readers=(Reader("q1"), Reader("m0", "member")),
        faults=(),
        lasts_s=6.0,
        once_all_read=True,
    ),
    "small-batches": Plan(
        seed=34,
        protocol="consumer",
        readers=(Reader("q1", options=(("maxOffsetsPerTrigger", "50"),)),),
        faults=(),
        lasts_s=5.0,
        once_all_read=True,
    ),
    "producers": Plan(
        seed=21,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("i0", "producer", PRODUCERS),
            Reader("i1", "producer", PRODUCERS),
        ),
        faults=(Fault(3.0, "kill", "i0", 0.0),),
        lasts_s=6.0,
        once_all_read=True,
    ),
    # Records come to the new partitions before anybody knows of them.
    "grow": Plan(
        seed=22,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2", knows_checkpoint=False)),
        faults=(Fault(2.0, "grow", "a"), Fault(4.0, "grow", "b"), Fault(7.0, "grow", "a")),
        rate=200,
        lasts_s=9.0,
        once_all_read=True,
    ),
    # One joins in the midst of the others' long batches, and of a member's work.
    "handover": Plan(
        seed=23,
        protocol="consumer",
        readers=(
            Reader("q1"),
            Reader("m0", "member"),
            Reader(LATE, joins=True),
        ),
        faults=(
            Fault(2.0, "hang", "q1", 14.0),
            Fault(2.5, "slow", "m0", 3.0),
            Fault(3.0, "join", LATE),
        ),
        lasts_s=9.0,
        once_all_read=True,
    ),
    "handover-classic": Plan(
        seed=24,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("m0", "member"),
            Reader(LATE, joins=True),
        ),
        faults=(
            Fault(2.0, "hang", "q1", 14.0),
            Fault(2.5, "slow", "m0", 3.0),
            Fault(3.0, "join", LATE),
        ),
        lasts_s=9.0,
        once_all_read=True,
    ),
    # Killed in mid-batch, and not back before another has delivered what it had.
    "taken-over": Plan(
        seed=25,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2")),
        faults=(
            Fault(2.0, "slow", "q1", 2.0),
            Fault(3.0, "hang", "q1", 20.0),
            Fault(5.0, "kill", "q1", 14.0),
        ),
        lasts_s=18.0,
        once_all_read=True,
    ),
    # As "taken-over", but the other hangs in the batch that has what the first one's had: after the
    # first hang, in which the session ends, it gets everything at once.
    "long-take-over": Plan(
        seed=26,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2")),
        faults=(
            Fault(2.0, "slow", "q1", 2.0),
            Fault(3.0, "hang", "q1", 20.0),
            Fault(5.0, "kill", "q1", 10.0),
            Fault(11.0, "hang", "q2", 6.5),
            Fault(12.0, "hang", "q2", 14.0),
        ),
        lasts_s=32.0,
        once_all_read=True,
    ),
    # Killed in mid-batch, and back within its session. Its replay takes long, and another joins
    # meanwhile.
    "long-replay": Plan(
        seed=27,
        protocol="classic",
        readers=(Reader("q1", options=_STATIC), Reader(LATE, joins=True)),
        faults=(
            Fault(2.0, "slow", "q1", 2.0),
            Fault(3.0, "hang", "q1", 20.0),
            Fault(5.0, "kill", "q1", 0.0),
            Fault(6.0, "slow", "q1", 10.0),
            Fault(14.0, "join", LATE),
        ),
        lasts_s=20.0,
        once_all_read=True,
    ),
    # Killed in a batch that has a part of a gap.
    "gaps": Plan(
        seed=28,
        protocol="classic",
        readers=(Reader("q1", options=_GAPS),),
        faults=(
            Fault(2.0, "kill", "q1", 0.0),
            Fault(15.0, "hang", "q1", 20.0),
            Fault(16.0, "kill", "q1", 0.0),
        ),
        lasts_s=18.0,
        once_all_read=True,
    ),
    # A member whose network delivers nothing for longer than its session, beside a query that
    # commits seldom: what the member commits too late can be seen.
    "stalled": Plan(
        seed=29,
        protocol="classic",
        readers=(Reader("m0", "member"), Reader("q1", trigger="seldom")),
        faults=(Fault(3.0, "stall", "m0", 1.4 * SESSION_S),),
        lasts_s=18.0,
        once_all_read=True,
    ),
    "disorder": Plan(
        seed=30,
        protocol="consumer",
        readers=(Reader("m0", "member", options=(("disorder", "yes"),)), Reader("q1")),
        faults=(Fault(4.0, "stop", "m0", 2.0),),
        rate=400,
        lasts_s=8.0,
        once_all_read=True,
    ),
    # Interrupted between two batches, of which the group has the last one nevertheless.
    "seldom": Plan(
        seed=31,
        protocol="consumer",
        readers=(Reader("q1", trigger="seldom"), Reader("q2")),
        faults=(
            Fault(5.0, "interrupt", "q1", 3.0),
            Fault(14.0, "interrupt", "q1", 3.0),
        ),
        lasts_s=20.0,
        once_all_read=True,
    ),
    # A run with an end begins when the only other query has just died. That one has a member for
    # each partition, so that none is on its way to the run, which has to wait for all of them.
    "dead-owner": Plan(
        seed=36,
        protocol="consumer",
        readers=(
            Reader("q1", options=(("readers", str(sum(TOPICS.values()))),)),
            Reader(LATE, trigger="availableNow", joins=True, options=(("readers", "1"),)),
        ),
        faults=(Fault(20.0, "kill", "q1", 16.0), Fault(20.6, "join", LATE)),
        rate=50,
        lasts_s=34.0,
        once_all_read=True,
    ),
    # Gracefully, with nothing that could hinder them.
    "stops": Plan(
        seed=35,
        protocol="consumer",
        readers=(Reader("q1"), Reader("q2", knows_checkpoint=False), Reader("m0", "member")),
        faults=tuple(Fault(2.0 + 2 * n, "stop", f"q{1 + n % 2}", 0.5) for n in range(6)),
        rate=200,
        lasts_s=14.0,
        once_all_read=True,
    ),
    # For longer than its session.
    "asleep": Plan(
        seed=32,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2"), Reader("m0", "member")),
        faults=(
            Fault(2.0, "pause planner", "q1", 1.4 * SESSION_S),
            Fault(3.0, "pause", "m0", 1.4 * SESSION_S),
            Fault(16.0, "pause", "q1", 1.4 * SESSION_S),
        ),
        rate=200,
        lasts_s=30.0,
        once_all_read=True,
    ),
    # Whichever broker coordinates: its members give up by themselves, which it does not log.
    "unanswered": Plan(
        seed=38,
        protocol="classic",
        readers=(Reader("q1"), Reader("q2", knows_checkpoint=False), Reader("m0", "member")),
        faults=tuple(Fault(1.0, "pause", str(broker), 1.4 * SESSION_S) for broker in BROKERS),
        rate=200,
        lasts_s=14.0,
        once_all_read=True,
    ),
    # Members that leave at once when they have committed.
    "leaving": Plan(
        seed=33,
        protocol="classic",
        readers=(Reader("m0", "member"), Reader("m1", "member"), Reader("q1")),
        faults=tuple(Fault(1.0 + 1.5 * n, "stop", f"m{n % 2}", 0.5) for n in range(8)),
        rate=400,
        lasts_s=14.0,
        once_all_read=True,
    ),
    # A rolling upgrade, in whose midst a query of the release before is killed.
    "upgrade": Plan(
        seed=30,
        protocol="consumer",
        readers=(
            Reader("q1", release="before"),
            Reader("q2", release="before", knows_checkpoint=False),
            Reader("m0", "member", release="before"),
            Reader("i0", "producer", PRODUCERS, release="before"),
            Reader("i1", "producer", PRODUCERS, release="before"),
        ),
        faults=(
            Fault(4.0, "upgrade", "q1", 1.0),
            Fault(6.0, "upgrade", "i0", 1.0),
            Fault(8.0, "upgrade", "m0", 1.0),
            Fault(10.0, "kill", "q2", 1.0),
            Fault(14.0, "upgrade", "q2", 0.0),
            Fault(16.0, "upgrade", "i1", 0.0),
        ),
        lasts_s=20.0,
    ),
    "upgrade-live": Plan(
        seed=31,
        protocol="classic",
        readers=(
            Reader("q1", release="before", options=_LIVE),
            Reader("q2", release="before", options=_LIVE),
        ),
        faults=(
            Fault(4.0, "kill", "q1", 8.0),
            Fault(14.0, "upgrade", "q1", 0.0),
            Fault(16.0, "kill", "q1", 4.0),
            Fault(20.0, "upgrade", "q2", 2.0),
        ),
        rate=200,
        lasts_s=26.0,
    ),
}
