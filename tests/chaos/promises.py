"""Sentences of the docs that a history can break, each with its file; ``oracle.py`` judges by them.

They stand there word for word, but for what an ellipsis leaves out: tests/unit/test_promises.py.
"""

from __future__ import annotations

REPEATED = "what-can-be-repeated.md"
NOTHING_SKIPPED = f"{REPEATED}: Nothing is skipped"
AFTER_SPARK = (
    f"{REPEATED}: a position is committed to the group only after Spark has committed the batch "
    "that reaches it"
)
ONE_BATCH = (
    f"{REPEATED}: At most one batch is delivered twice: the one that was in flight when its "
    "process died or lost a partition"
)
COMMITTED_ONCE = f"{REPEATED}: whichever is further: another has delivered the records in between"
MARKED = (
    f"{REPEATED}: A row says lost = true only if the group's committed offset is past it: another "
    "member has delivered it without the mark"
)
ONLY_IN_A_REPLAY = (
    "stateful-queries.md: Only where a restart replays the batch do the rows that the new owner "
    "has committed by then have lost = true"
)
REPLAY_WAITS = f"{REPEATED}: the replay waits until that query has committed the whole range (the "
REPLAY_WAITS += "rows are marked)"
REPLAY_KEEPS = (
    f"{REPEATED}: The partitions that it gets stay its own until the replay is done, however long "
    "that takes"
)
HANDS_OUT_NO_MORE = (
    f"{REPEATED}: A planner that is suspended for longer than the session … counts as dead … The "
    "suspended planner hands out nothing more that is not its own"
)
CHECKPOINT_TOO = (
    f"{REPEATED}: The offset in Spark's log has the position of every partition that the query "
    "owns or has owned … whichever is further"
)
SAME_RECORDS = f"{REPEATED}: A replay reads exactly the records that the first attempt read"
READ_TO_ITS_END = (
    f"{REPEATED}: When it ends without an error, every record that was in its topics when it "
    "started was delivered by the run, or was in a partition whose group offset is past it, or was "
    "in a partition of another member that was alive after the run started"
)
IN_ORDER = "parallel-rebalance.md: Within a partition the live rows are in order, and so are the "
IN_ORDER += "rows of gaps"
FORWARD = "consumer.md: In the background a partition's committed position only moves forward"
FAILS_ON_LOSS = "README.md: failOnDataLoss … true … false continues, with a warning, when records "
FAILS_ON_LOSS += "no longer exist in Kafka"
FAILS_ON_RENEWAL = "options.md: A topic that is recreated at once … counts as deleted … and "
FAILS_ON_RENEWAL += "fails, even if all that it had read is committed"
ALL_OR_NONE = "producer-groups.md: A commit is one Kafka transaction: your records, a record with "
ALL_OR_NONE += "the restart point"
READ_ON = "producer-groups.md: Start it again, and it continues where it was"
COMMITTED_ONLY = "what read_committed means to every Kafka client"
ONE_VALUE = "what an offset means to every Kafka client"
