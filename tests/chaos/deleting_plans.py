"""Named plans in which records are deleted that somebody was still to read."""

from __future__ import annotations

from .random_plans import GOES_ON, Fault, Plan, Reader

DELETING_PLANS = {
    # Retention takes what a hanging reader, one that is down and a slow one were still to read.
    "retention": Plan(
        seed=60,
        protocol="classic",
        readers=(
            Reader("q1", options=(GOES_ON,)),
            Reader("q2", options=(GOES_ON,), knows_checkpoint=False),
            Reader("m0", "member"),
            Reader("q4", group="alone", options=(GOES_ON, ("assign", "all"))),
        ),
        faults=(
            Fault(1.0, "hang", "q1", 6.0),
            Fault(2.0, "expire", "a"),
            Fault(4.0, "stop", "q4", 8.0),
            Fault(9.0, "slow", "q2", 5.0),
            Fault(10.0, "outgrow", "b"),
            Fault(14.0, "kill", "q1", 4.0),
            Fault(14.5, "expire", "a"),
        ),
        lasts_s=22.0,
        once_all_read=True,
    ),
    # Nobody goes on without what is gone, until somebody has looked at it.
    "loss": Plan(
        seed=61,
        protocol="consumer",
        readers=(
            Reader("q1"),
            Reader("q2", knows_checkpoint=False),
            Reader("q4", group="alone", options=(("assign", "all"),)),
        ),
        faults=(
            Fault(2.0, "hang", "q1", 5.0),
            Fault(4.0, "trim", "a"),
            Fault(14.0, "stop", "q4", 5.0),
            Fault(14.5, "kill", "q2", 1.0),
            Fault(15.0, "stop", "q1", 5.0),
            Fault(15.5, "expire", "a"),
        ),
        lasts_s=26.0,
        once_all_read=True,
    ),
    # All of the old topic has been read.
    "loss-anew": Plan(
        seed=62,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("q4", group="alone", options=(("assign", "all"),)),
        ),
        faults=(Fault(4.0, "anew", "n", 6.0),),
        lasts_s=20.0,
        once_all_read=True,
    ),
    # The second is away for longer than its records are kept.
    "expire": Plan(
        seed=63,
        protocol="consumer",
        readers=(
            Reader("q1", options=(GOES_ON,)),
            Reader("q2", group="alone", options=(GOES_ON, ("assign", "all"))),
            Reader("m0", "member"),
        ),
        faults=(
            Fault(2.0, "expire", "a", 14.0),
            Fault(3.0, "stop", "q2", 7.0),
            Fault(4.0, "slow", "q1", 5.0),
            Fault(12.0, "restart", "1"),
            Fault(14.0, "kill", "q1", 2.0),
        ),
        lasts_s=22.0,
        once_all_read=True,
    ),
    # Who is down or slow while it is deleted.
    "loss-down": Plan(
        seed=64,
        protocol="classic",
        readers=(
            Reader("q1"),
            Reader("q2", group="alone", options=(("assign", "all"),)),
            Reader("q3", group="third", knows_checkpoint=False),
        ),
        faults=(
            Fault(3.0, "stop", "q1", 6.0),
            Fault(3.0, "kill", "q2", 6.0),
            Fault(3.0, "slow", "q3", 5.0),
            Fault(6.0, "trim", "a"),
            Fault(12.0, "stop", "q3", 10.0),
            Fault(14.0, "expire", "b", 8.0),
        ),
        lasts_s=28.0,
        once_all_read=True,
    ),
}
