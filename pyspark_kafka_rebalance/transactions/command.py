"""The command ``transactions``: what is open in a cluster, whom it holds back, and its end.

    alias transactions="python -m pyspark_kafka_rebalance.transactions"
    transactions list --bootstrap-servers broker:9092
    transactions describe --topic orders --bootstrap-servers broker:9092
    transactions abort --transactional-id etl-7 --bootstrap-servers broker:9092

``list`` and ``describe`` write nothing. ``abort`` asks before it does, unless --yes says so.

Exit codes: 0; 1 if nothing could be shown or aborted, or an option is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from ..errors import KafkaRebalanceError
from ..settings.command_line import (
    DONE,
    FAILED,
    CommandParser,
    add_command_config,
    add_servers,
    add_timeout,
    client_settings,
    drop_output,
    print_what_the_encoding_has,
)
from ..settings.names import utf8
from .aborting import abort
from .look import Filters, TransactionsLook
from .report import OPEN_STATES, STATES
from .screen import show
from .table import (
    listing,
    listing_as_json,
    of_partitions,
    of_transaction,
    partitions_as_json,
    transaction_as_json,
)

_EPILOG = "docs/transactions.md explains each column."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    print_what_the_encoding_has()
    given = _parse(arguments)
    try:
        settings = client_settings(given)
        with TransactionsLook(settings.client, given.timeout) as look:
            if given.command == "list":
                _list(look, given)
            elif given.command == "describe":
                _describe(look, given)
            else:
                abort(look, given)
    except KeyboardInterrupt:
        return FAILED
    except BrokenPipeError:
        return drop_output()
    except (KafkaRebalanceError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    return DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m pyspark_kafka_rebalance.transactions",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add_options) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog=_EPILOG,
            allow_abbrev=False,
        )
        _add_common(command)
        add_options(command)
    given = parser.parse_args(arguments)
    problem = _contradiction(given)
    if problem:
        parser.error(problem)
    return given


def _add_common(parser: CommandParser) -> None:
    add_servers(parser)
    add_command_config(parser)
    add_timeout(parser)
    parser.add_argument("--json", action="store_true", help="for programs: print one line of JSON")


def _add_list(parser: CommandParser) -> None:
    add = parser.add_argument
    add(
        "--state",
        action="append",
        choices=STATES,
        metavar="STATE",
        help=f"those in this state; may be repeated ({', '.join(OPEN_STATES)}); also: "
        f"{', '.join(state for state in STATES if state not in OPEN_STATES)}",
    )
    add("--all", action="store_true", help="transactional ids in any state")
    add(
        "--producer-id",
        action="append",
        default=[],
        type=_producer_id,
        metavar="ID",
        help="those of this producer id; may be repeated",
    )
    add(
        "--open-for",
        type=_long,
        metavar="SECONDS",
        help="those that are open for longer than this",
    )


def _add_describe(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--transactional-id", type=_name, metavar="ID", help="show this one, by partition")
    add(
        "--topic",
        action="append",
        default=[],
        type=_name,
        metavar="TOPIC",
        help="show what holds readers of this topic back; may be repeated",
    )
    add(
        "--partition",
        action="append",
        default=[],
        type=_offset,
        metavar="NUMBER",
        help="of the topic, this partition alone; may be repeated",
    )


def _add_abort(parser: CommandParser) -> None:
    add = parser.add_argument
    add(
        "--transactional-id",
        type=_name,
        metavar="ID",
        help="abort its transaction, and fence its producer with a new epoch",
    )
    add("--topic", type=_name, metavar="TOPIC", help="of a hanging transaction: the topic")
    add("--partition", type=_offset, metavar="NUMBER", help="its partition")
    add("--start-offset", type=_offset, metavar="OFFSET", help="the offset where it begins")
    add("--yes", action="store_true", help="do not ask for a confirmation")


#: By name: what each is for, and its options.
_COMMANDS: Mapping[str, tuple[str, Callable[[CommandParser], None]]] = {
    "list": ("list the cluster's open transactions, oldest first", _add_list),
    "describe": ("show one transaction, or what holds partitions back", _add_describe),
    "abort": ("abort one transaction, after a confirmation", _add_abort),
}


def _contradiction(given: argparse.Namespace) -> str:
    """What is missing or too much; empty if nothing is."""
    if given.command == "list":
        return "--all and --state exclude each other" if given.all and given.state else ""
    if bool(given.transactional_id) == bool(given.topic):
        return "name a --transactional-id or a --topic"
    if given.command == "describe":
        alone = given.transactional_id and given.partition
        return "--partition needs a --topic" if alone else ""
    of_log = (given.partition, given.start_offset)
    if given.topic and None in of_log:
        return "--topic needs --partition and --start-offset, as describe --topic shows them"
    if given.transactional_id and of_log != (None, None):
        return "--partition and --start-offset need a --topic"
    return ""


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a non-empty text")
    return utf8(text)


def _offset(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 0 on")
    return int(text)


def _producer_id(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 0 to 2**63 - 1")
    return int(text)


def _long(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:  # neither is NaN
        raise argparse.ArgumentTypeError(f"{text!r}: seconds from 0 on")
    return seconds


def _list(look: TransactionsLook, given: argparse.Namespace) -> None:
    states = () if given.all else tuple(given.state or OPEN_STATES)
    report = look.listing(Filters(states, tuple(given.producer_id), given.open_for))
    show(listing_as_json(report) if given.json else listing(report))


def _describe(look: TransactionsLook, given: argparse.Namespace) -> None:
    if given.transactional_id:
        report = look.of_id(given.transactional_id)
        show(transaction_as_json(report) if given.json else of_transaction(report))
    else:
        report = look.of_topics(given.topic, given.partition)
        show(partitions_as_json(report) if given.json else of_partitions(report))
