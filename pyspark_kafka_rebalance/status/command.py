"""The command ``status``: a consumer group as a table, once or live.

    python -m pyspark_kafka_rebalance.status --bootstrap-servers broker:9092 --group orders-etl

Exit codes: 0; 1 if there is no such group, no broker answers in time, or an option is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..errors import KafkaRebalanceError
from ..settings.client_settings import CONNECTION_SETTINGS
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
    seconds,
)
from ..settings.names import utf8
from .look import GroupLook
from .screen import lines, live_table
from .table import as_json, as_text

_WATCH_S = 2.0

#: The settings of a file that apply to reading a group's state.
_USED = CONNECTION_SETTINGS | {"isolation.level"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    print_what_the_encoding_has()
    given = _parse(arguments)
    try:
        settings = client_settings(given, _USED)
        isolation = settings.consumer["isolation_level"]
        with GroupLook(settings.client, given.group, isolation, given.timeout) as look:
            if given.watch is not None:
                _watch(look, given)
            else:
                report = look.report()
                print(as_json(report) if given.json else as_text(report), flush=True)
    except KeyboardInterrupt:
        return DONE if given.watch is not None else FAILED
    except BrokenPipeError:
        return drop_output()
    except (KafkaRebalanceError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    return DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m pyspark_kafka_rebalance.status",
        description="Show a consumer group of any client, in both protocols, as a table: who owns "
        "which partition, how far the group has read, what is being revoked. It does not join the "
        "group.",
        epilog="docs/observability.md explains each column.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_servers(parser)
    add("--group", required=True, type=utf8, metavar="GROUP_ID")
    add_command_config(parser)
    add(
        "--watch",
        nargs="?",
        type=seconds,
        const=_WATCH_S,
        metavar="SECONDS",
        help=f"refresh until Ctrl-C, every {_WATCH_S:g} s by default",
    )
    add("--json", action="store_true", help="for programs: print one line of JSON per look")
    add_timeout(parser)
    given = parser.parse_args(arguments)
    if not given.group:
        parser.error("argument --group: a non-empty text")
    return given


def _watch(look: GroupLook, given: argparse.Namespace) -> None:
    """Report until interrupted. The first report must succeed; later ones may fail."""
    report = look.report()
    on_terminal = sys.stdout.isatty() and not given.json
    screen: Any = live_table() if on_terminal else lines(given.json)
    with screen as show:
        problem = ""
        while True:
            show(report, problem)
            time.sleep(given.watch)
            try:
                report, problem = look.report(), ""
            except KafkaRebalanceError as error:
                problem = " ".join(str(error).split())
