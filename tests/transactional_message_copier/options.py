"""The command line of Kafka's TransactionalMessageCopier (Apache Kafka 4.3)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pyspark_kafka_rebalance.settings.values import INT_MAX


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes
    ----------
    input_topic, input_partition : str, int
        Where records are read; in group mode, the topic alone.
    output_topic : str
        Where they are written, each to the partition of the same number.
    broker_list : str
        The bootstrap servers.
    max_messages : int
        Copy at most this many; -1 for all up to the end as of the start.
    consumer_group : str
        Where the offsets are committed.
    transaction_size : int
        The most records of a transaction.
    transaction_timeout_ms : int
        After which the coordinator aborts a transaction.
    transactional_id : str
        The producer's.
    random_aborts : bool
        Whether to abort a third of the transactions.
    group_mode : bool
        Whether to subscribe to the topic.
    use_group_metadata : bool
        Whether the coordinator fences former owners (KIP-447).
    group_protocol : str
        Not in Java's: ``classic`` or ``consumer``.
    """

    input_topic: str
    input_partition: int
    output_topic: str
    broker_list: str
    transactional_id: str
    max_messages: int = -1
    consumer_group: str = "-1"
    transaction_size: int = 200
    transaction_timeout_ms: int = 60_000
    random_aborts: bool = False
    group_mode: bool = False
    use_group_metadata: bool = False
    group_protocol: str = "classic"


class _Parser(argparse.ArgumentParser):
    """Exits with 1 if an option is wrong, as Java's does."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with 1 if it is wrong."""
    parser = _Parser(
        prog="transactional-message-copier",
        description="Copies messages transactionally from an input partition to an output topic, "
        "and commits the consumed offsets with them; options and JSON lines are those of Kafka's "
        "own tool.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--input-topic", required=True, help="consume messages from this topic")
    add("--input-partition", required=True, type=_at_least(0), help="and from this partition")
    add("--output-topic", required=True, help="produce messages to this topic")
    add("--broker-list", required=True, metavar="HOST1:PORT1[,HOST2:PORT2[...]]")
    add(
        "--max-messages",
        type=_at_least(-1),
        default=-1,
        help="process this many messages; -1 (default): up to the end as of the start",
    )
    add("--consumer-group", default="-1", help="where the offsets are committed")
    add(
        "--transaction-size", type=_at_least(1), default=200, help="messages of a transaction (200)"
    )
    add(
        "--transaction-timeout",
        dest="transaction_timeout_ms",
        type=_at_least(1),
        default=60_000,
        metavar="TRANSACTION-TIMEOUT",
        help="in milliseconds (60000)",
    )
    add("--transactional-id", required=True, help="the producer's")
    add(
        "--enable-random-aborts",
        dest="random_aborts",
        action="store_true",
        help="abort a third of the transactions",
    )
    add(
        "--group-mode",
        action="store_true",
        help="subscribe to the input topic; the input partition is ignored",
    )
    add("--use-group-metadata", action="store_true", help="have the group fence former owners")
    add(
        "--group-protocol",
        default="classic",
        type=str.lower,
        choices=("classic", "consumer"),
        help="of --group-mode; not an option of Kafka's own tool",
    )
    return Options(**vars(parser.parse_args(arguments)))


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        parsed = int(text)
        if not least <= parsed <= INT_MAX:
            raise argparse.ArgumentTypeError(f"{text}: a number from {least} on")
        return parsed

    number.__name__ = "number"
    return number
