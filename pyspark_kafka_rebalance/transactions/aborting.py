"""Aborts one transaction, after a confirmation, and says what was done.

The transaction that was shown may have ended before the confirmation, and another one started: that
one is not aborted.
"""

from __future__ import annotations

import argparse
import json
import sys

from kafka.structs import TopicPartition

from ..errors import KafkaRebalanceError
from .look import TransactionsLook, UnknownTransactionError
from .report import DECIDED, Hold, Report, Transaction
from .screen import show
from .table import duration, of_partitions, of_transaction


class NotAbortedError(KafkaRebalanceError):
    """Nothing was aborted."""


def abort(look: TransactionsLook, given: argparse.Namespace) -> None:
    """Abort what the options name.

    Raises
    ------
    NotAbortedError
        It must not be aborted in this way, has ended in the meantime, or was not confirmed.
    UnknownTransactionError
        There is no such transaction.
    """
    if given.transactional_id:
        _abort_id(look, given)
    else:
        _abort_hanging(look, given)


def _abort_id(look: TransactionsLook, given: argparse.Namespace) -> None:
    report = look.of_id(given.transactional_id)
    (before,) = report.transactions
    name = repr(before.transactional_id)
    if not before.is_open:
        _say(given, f"{name} has no open transaction ({before.state}); nothing was done", None)
        return
    if (outcome := DECIDED.get(before.state)) is not None:
        raise NotAbortedError(
            f"the transaction of {name} is about to be {outcome} ({before.state}): its coordinator "
            f"{before.coordinator} writes the markers; nothing was done"
        )
    if not given.yes:
        show(of_transaction(report))
        _confirm(f"abort the transaction of {name}, and fence its producer?")
        (now,) = look.of_id(given.transactional_id).transactions
        if not _is_same(before, now):
            raise NotAbortedError(f"this transaction of {name} has ended; nothing was done")
    producer_id, epoch = look.take_over(before)
    age = before.open_for(report.at)
    aborted = f"aborted the transaction of {name}"
    aborted += "" if age is None else f", open for {duration(age)}"
    _say(
        given,
        f"{aborted}; a producer with producer id {before.producer_id} and epoch {before.epoch} is "
        f"fenced: producer id {producer_id}, epoch {epoch} now",
        {
            "transactional_id": before.transactional_id,
            "producer_id": producer_id,
            "epoch": epoch,
        },
    )


def _is_same(before: Transaction, now: Transaction) -> bool:
    return now.is_open and (before.producer_id, before.epoch, before.started) == (
        now.producer_id,
        now.epoch,
        now.started,
    )


def _abort_hanging(look: TransactionsLook, given: argparse.Namespace) -> None:
    partition = TopicPartition(given.topic, given.partition)
    report = look.of_topics([partition.topic], [partition.partition])
    hold = _hold_at(report, partition, given.start_offset)
    if hold.transaction is not None:
        raise NotAbortedError(
            f"this transaction belongs to transactional id {hold.transaction.transactional_id!r} "
            f"({hold.transaction.state}), and a marker in one partition would tear it; abort it "
            "with --transactional-id"
        )
    if report.silent:
        raise NotAbortedError(
            f"broker {min(report.silent)} does not answer, and may coordinate this transaction: "
            f"{report.silent[min(report.silent)]}; nothing was done"
        )
    if not hold.is_hanging:
        raise NotAbortedError("this transaction has just ended; nothing was done")
    if not given.yes:
        show(of_partitions(report))
        _confirm(f"write an abort marker into {partition.topic}-{partition.partition}?")
    assert hold.writer is not None
    look.end_hanging(partition, hold.writer)
    log = look.of_topics([partition.topic], [partition.partition]).logs[partition]
    _say(
        given,
        f"aborted the transaction of producer id {hold.writer.producer_id}, epoch "
        f"{hold.writer.epoch} in {partition.topic}-{partition.partition}: the last stable offset "
        f"was {hold.log.stable} and is {log.stable}, of {log.end}",
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "producer_id": hold.writer.producer_id,
            "epoch": hold.writer.epoch,
            "last_stable_offset": log.stable,
        },
    )


def _hold_at(report: Report, partition: TopicPartition, start: int) -> Hold:
    holds = report.holds()
    for hold in holds:
        if hold.writer is not None and hold.writer.start == start:
            return hold
    name = f"{partition.topic}-{partition.partition}"
    starts = ", ".join(str(hold.writer.start) for hold in holds if hold.writer is not None)
    problem = report.logs[partition].problem
    there = problem or (f"open ones begin at {starts}" if starts else "none is open")
    raise UnknownTransactionError(
        f"no open transaction begins at offset {start} of {name}: {there}"
    )


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise NotAbortedError(f"{question} There is no terminal to ask: repeat it with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotAbortedError("not confirmed; nothing was done")


def _say(given: argparse.Namespace, text: str, aborted: dict[str, object] | None) -> None:
    print(json.dumps({"aborted": aborted, "said": text}) if given.json else text, flush=True)
