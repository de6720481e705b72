"""Put known faults back, one at a time, and see whether random plans find them.

``python -m tests.chaos.mutations`` tries them all; ``--only lease,marks`` some. Each runs on a copy
of the package with one place changed, until a plan has failed or all have passed. It tests the
plans and the oracle: a fault that no plan finds is one that they are blind to.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka

from .named_plans import NAMED
from .oracle import summary
from .plan_admin import RETENTION_AT_ONCE
from .plan_history import Outcome
from .plan_sparks import ROOT, Sparks
from .plans import carry_out
from .random_plans import Plan, make_plan
from .run_log import log_into

PACKAGE = "pyspark_kafka_rebalance"


@dataclass(frozen=True)
class Mutation:
    """One place in the package, and what is wrong there afterwards.

    Attributes
    ----------
    name : str
        For ``--only``.
    fault : str
        What the package does then.
    file : str
        Below the package.
    was, becomes : str
        ``was`` must be in the file exactly once.
    named : str
        Named plans that it takes, instead of those of seeds.
    """

    name: str
    fault: str
    file: str
    was: str
    becomes: str
    named: str = ""


MUTATIONS = (
    # -- queries ----------------------------------------------------------------------------------
    Mutation(
        "revoke",
        "a revoke does not wait for the batch that reads the partition",
        "source/group/owned/assignment.py",
        "if self.batches.have(p) or p in flushed_later}",
        "if p in flushed_later}",
        named="handover",
    ),
    Mutation(
        "early-commit",
        "a query commits what it hands out before Spark has committed the batch",
        "source/group/owned/assignment.py",
        "        self.marks.hand_out(ranges)\n",
        "        self.marks.hand_out(ranges)\n"
        "        self.marks.prove((p, one.end) for p, one in ranges.items())\n"
        "        self.commits.compare(ranges)\n",
        named="taken-over",
    ),
    Mutation(
        "skip",
        "a batch begins one offset behind the end of the last one",
        "source/group/owned/assignment.py",
        "own.position, own.read = handed.end, True",
        "own.position, own.read = handed.end + 1, True",
        named="calm",
    ),
    Mutation(
        "resumed",
        "a revoke does not wait for a batch that Spark reruns after a restart",
        "source/group/owned/assignment.py",
        "        self.batches.add(ranges, catch_up)\n        self._unflushed |=",
        "        self.batches.add({}, {})\n        self._unflushed |=",
        named="long-replay",
    ),
    Mutation(
        "checkpoint",
        "a restart forgets the positions of the checkpoint",
        "source/group/owned/assignment.py",
        "self.marks.restore(positions)",
        "self.marks.restore({})",
        named="reset",
    ),
    Mutation(
        "group-only",
        "a partition starts at the group's offset, even if the query has read further",
        "source/group/owned/marks.py",
        "max(-1 if committed is None else committed, self._handed_out.get(partition, -1))",
        "-1 if committed is None else committed",
        named="reset",
    ),
    Mutation(
        "grown",
        "a partition added to a topic starts at its end",
        "source/group/owned/starts.py",
        "if partition in self._created_anew or partition not in self._found:\n"
        '            return "earliest"',
        "if partition in self._created_anew or partition not in self._found:\n"
        '            return "latest"',
        named="grow",
    ),
    Mutation(
        "unmarked",
        "rows of a replay that the group already has are not marked lost",
        "source/group/others/foreign_ranges.py",
        "if standing.committed is not None and standing.committed > ranges[partition].start",
        "if standing.committed is None and ranges[partition].start < 0",
        named="taken-over",
    ),
    Mutation(
        "replay",
        "a replay does not wait for the next owner of its partitions (17, 18)",
        "source/group/others/foreign_ranges.py",
        "if now >= until or (seen.joined and all(slow)):",
        "if now >= 0.0 or (seen.joined and all(slow)):",
        named="long-take-over",
    ),
    # Not found: when a process goes on, its heartbeat is refused within milliseconds. Only a batch
    # planned before the answer would show it. ``tests/unit/test_lease.py`` has it instead.
    Mutation(
        "lease",
        "a process that was suspended for longer than its session hands out all the same",
        "consumer/membership/liveness.py",
        'return float("inf") if self._renewed_at is None else self.clock() - self._renewed_at',
        'return float("inf") if self._renewed_at is None else 0.0',
        named="asleep",
    ),
    Mutation(
        "stop",
        "a query that is stopped does not wait for its last commits",
        "source/group/group_commits.py",
        "drained = member.drain((self._pump.left_s() - self._left_to_leave_s()) * 1000)",
        "drained = member is not None",
        named="stops",
    ),
    Mutation(
        "late-commit",
        "what waits to be committed at a loss is sent after the next join (2)",
        "consumer/commits/commit_loop.py",
        "before, self._commits = self._commits, OffsetCommits()",
        "before = OffsetCommits()",
        named="stalled",
    ),
    # -- gaps -------------------------------------------------------------------------------------
    Mutation(
        "no-gap",
        "a partition that starts live forgets its backlog",
        "source/group/owned/positioning.py",
        "self._gaps.begin(partition, unread.between(0, live), unproven.between(0, live))",
        "self._gaps.forget(partition)",
        named="gaps",
    ),
    Mutation(
        "gap-twice",
        "a gap is read by batch after batch until it is proven",
        "source/group/owned/assignment.py",
        "self.gaps.hand_out(caught_up)",
        "self.gaps.hand_out({})",
        named="gaps",
    ),
    # -- members ----------------------------------------------------------------------------------
    Mutation(
        "drained",
        "a member releases a partition while its last commit is under way",
        "consumer/membership/ownership.py",
        "released, after = self._standing.releasing.difference(outstanding), self._standing",
        "released, after = self._standing.releasing, self._standing",
        named="leaving",
    ),
    Mutation(
        "reconciled",
        "the consumer protocol's heartbeat lists the target as owned, and not what is owned",
        "consumer/membership/reconciliation.py",
        "return {**self.assignable, **self.owned}",
        "return dict(self.assignable)",
        named="handover",
    ),
    Mutation(
        "claim",
        "a classic member joins without a claim to what it owns",
        "consumer/membership/classic.py",
        "claim = self._subscription.owned() if mine else frozenset()",
        "claim = frozenset()",
        named="handover-classic",
    ),
    Mutation(
        "backwards",
        "a lower offset is committed in the background after a higher one (1)",
        "consumer/commits/offset_commits.py",
        "        if entry.offset > self.floor:\n"
        "            self.waiting, self.floor, self.added_after",
        "        if entry.offset:\n            self.waiting, self.floor, self.added_after",
        named="disorder",
    ),
    Mutation(
        "close",
        "a member that stops does not wait for its last commits",
        "consumer/consumer.py",
        "while not self._hand_outs.end():",
        "while self._hand_outs is None:",
        named="leaving",
    ),
    # -- reading ----------------------------------------------------------------------------------
    Mutation(
        "aborted",
        "records of aborted transactions are read with read_committed",
        "fetch/transactions.py",
        "return producer_id in self._open",
        "return producer_id < -1",
        named="calm",
    ),
    Mutation(
        "half-batch",
        "a range that begins within a batch of the log is read from the beginning of that batch",
        "fetch/decoder.py",
        "header.records, header.base_offset, timestamp, append_time, position, self._range.end",
        "header.records, header.base_offset, timestamp, append_time, 0, self._range.end",
        named="small-batches",
    ),
    # -- what is gone -----------------------------------------------------------------------------
    # A topic that is created anew is noticed by the planner, by its end and by its id, and by the
    # task, by its id: each lets the query fail without the others.
    Mutation(
        "loss",
        "with failOnDataLoss=true a query goes on without records that are gone",
        "fetch/range_reader.py",
        "if self._settings.fail_on_data_loss:",
        "if self._settings is None:",
        named="loss",
    ),
    # -- producer groups --------------------------------------------------------------------------
    Mutation(
        "points",
        "a transaction that touches several source partitions writes one restart point",
        "producer/transactions.py",
        "for p, value in points.items()\n            }",
        "for p, value in list(points.items())[:1]\n            }",
        named="producers",
    ),
)


def main() -> int:
    given = _arguments()
    wanted = [one for one in MUTATIONS if not given.only or one.name in given.only.split(",")]
    for one in wanted:  # before the first of them takes minutes
        mutated(one)
    work = Path(tempfile.mkdtemp(prefix="mutations-"))
    log_into(work)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # brokers come and go
    print(f"{len(wanted)} faults; logs: {work}", flush=True)
    table = Table("fault", "what the package does then", "plans", "found by", title="mutations")
    blind = 0
    with LocalKafka(3, folder=work / "kafka", broker_config=RETENTION_AT_ONCE) as kafka:
        for one in wanted:
            began = time.monotonic()
            count, found = _try(one, plans_of(one, given.seed, given.plans), kafka, work)
            took_s = time.monotonic() - began
            blind += not found
            table.add_row(one.name, one.fault, str(count), "; ".join(found) or "nobody")
            print(f"{one.name}: {count} plans, {took_s:.0f} s: {found or 'NOT FOUND'}", flush=True)
    Console().print(table)
    return 1 if blind else 0


def plans_of(one: Mutation, seed: int, plans: int) -> list[Plan]:
    """Those that the fault names, else some of seeds."""
    if one.named:
        return [NAMED[name] for name in one.named.split(",")]
    return [make_plan(number) for number in range(seed, seed + plans)]


def mutated(one: Mutation) -> str:
    """The changed file's text; raises ValueError if there is no such place, or more than one."""
    text = (ROOT / PACKAGE / one.file).read_text()
    if text.count(one.was) != 1:
        raise ValueError(f"{one.name}: {one.file} has {one.was!r} {text.count(one.was)} times")
    return text.replace(one.was, one.becomes)


def _try(one: Mutation, plans: list[Plan], kafka: LocalKafka, work: Path) -> tuple[int, list[str]]:
    """How many plans it took, and two of the verdicts or what else was wrong."""
    root = work / one.name
    shutil.copytree(ROOT / PACKAGE, root / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").symlink_to(ROOT / "tests")
    (root / PACKAGE / one.file).write_text(mutated(one))
    sparks = Sparks(root, root)
    try:
        for count, plan in enumerate(plans, 1):
            outcome = carry_out(kafka, sparks, plan, root)
            if outcome.failed:
                return count, found_in(outcome)
        return len(plans), []
    finally:
        sparks.close()


def found_in(outcome: Outcome) -> list[str]:
    """What was wrong, verdicts first, shortened."""
    told = [*summary(outcome.verdicts), *outcome.problems]
    return [line[:80] for line in told[:2]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--seed", type=int, default=300, help="of the first plan of each")
    parser.add_argument(
        "--plans", type=int, default=8, help="at most so many of seeds, for those without a name"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
