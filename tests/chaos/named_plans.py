"""Plans for one kind of event each, whose names say what happens: ``plans --named hang,reset``."""

from __future__ import annotations

from .random_plans import LATE, LIMIT_MS, Fault, Plan, Reader

_LIMITED = (("maxBatchDurationMs", LIMIT_MS),)
_IMPATIENT = (("revokeTimeoutMs", LIMIT_MS),)
_LOSSY = (("failOnDataLoss", "false"),)

NAMED = {
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
            Reader("q1", options=_LOSSY),
            Reader("q2", options=_LOSSY),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(*_LOSSY, ("assign", "all"))),
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
            Reader("q1", options=_LOSSY),
            Reader("q2", options=_LOSSY, knows_checkpoint=False),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(*_LOSSY, ("assign", "all"))),
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
            Reader("q1", options=_LOSSY),
            Reader("q2", options=(*_LOSSY, ("pattern", "all"))),
        ),
        faults=(
            Fault(12.0, "slow", "q1", 5.0),
            Fault(13.0, "anew", "n"),
            Fault(24.0, "anew", "n"),
        ),
        lasts_s=36.0,
    ),
}
