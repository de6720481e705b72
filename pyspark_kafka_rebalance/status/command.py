"""The command ``status``: a consumer group as a table, once or live.

    python -m pyspark_kafka_rebalance.status --bootstrap-servers broker:9092 --group orders-etl

Exit codes: 0; 1 if there is no such group, no broker answers in time, or an option is wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import KafkaRebalanceError, OptionError, SeveralOptionsError
from ..settings.arguments import utf8
from ..settings.client_settings import (
    ADMIN_SETTINGS,
    CONNECTION_SETTINGS,
    KNOWN_SETTINGS,
    ClientSettings,
    map_client_settings,
)
from ..settings.properties_file import decode_properties
from .look import GroupLook
from .screen import lines, live_table
from .table import as_json, as_text

DONE, FAILED = range(2)

_TIMEOUT_S = 10.0
_WATCH_S = 2.0
_LONGEST_S = 300.0

#: Settings that the command line alone decides, despite the file, as in Kafka's own tools.
_NOT_FROM_FILE = frozenset({"bootstrap.servers", "group.id", "request.timeout.ms"})

#: The option that sets a setting.
_GIVEN_AS = {"bootstrap.servers": "--bootstrap-servers", "request.timeout.ms": "--timeout"}

#: The settings of a file that apply to reading a group's state.
_USED = CONNECTION_SETTINGS | {"isolation.level"}


class _Parser(argparse.ArgumentParser):
    """Prints an error as one line, and exits with 1."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit."""
        self.exit(FAILED, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    _print_what_the_encoding_has()
    given = _parse(arguments)
    try:
        settings = _settings(given)
        isolation = settings.consumer["isolation_level"]
        with GroupLook(settings.client, given.group, isolation, given.timeout) as look:
            if given.watch is not None:
                _watch(look, given)
            else:
                report = look.report()
                print(as_json(report) if given.json else as_text(report), flush=True)
    except KeyboardInterrupt:
        return DONE if given.watch is not None else FAILED
    except BrokenPipeError:  # as with "| head": the output is no longer read
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KafkaRebalanceError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    return DONE


def _print_what_the_encoding_has() -> None:
    """Print "?" for characters that standard output cannot encode, unless the user chose how to:
    columns stay aligned."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors in ("strict", "surrogateescape"):
        out.reconfigure(errors="replace")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m pyspark_kafka_rebalance.status",
        description="Show a consumer group of any client, in both protocols, as a table: who owns "
        "which partition, how far the group has read, what is being revoked. It does not join the "
        "group.",
        epilog="docs/observability.md explains each column.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--bootstrap-servers", "--bootstrap-server", required=True, metavar="HOST:PORT,…")
    add("--group", required=True, type=utf8, metavar="GROUP_ID")
    add(
        "--command-config",
        metavar="FILE",
        help="settings of the Java client, as Kafka's own tools take them: logins, certificates",
    )
    add(
        "--watch",
        nargs="?",
        type=_seconds,
        const=_WATCH_S,
        metavar="SECONDS",
        help=f"refresh until Ctrl-C, every {_WATCH_S:g} s by default",
    )
    add("--json", action="store_true", help="for programs: print one line of JSON per look")
    add(
        "--timeout",
        type=lambda text: _seconds(text, 1.0),
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long the brokers may take to answer ({_TIMEOUT_S:g})",
    )
    given = parser.parse_args(arguments)
    if not given.group:
        parser.error("argument --group: a non-empty text")
    return given


def _seconds(text: str, least: float = 0.1) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not least <= seconds <= _LONGEST_S:  # neither is NaN
        raise argparse.ArgumentTypeError(f"{text!r}: seconds from {least:g} to {_LONGEST_S:g}")
    return seconds


def _settings(given: argparse.Namespace) -> ClientSettings:
    settings = {} if given.command_config is None else _from_file(given.command_config)
    settings["bootstrap.servers"] = given.bootstrap_servers
    settings["request.timeout.ms"] = str(int(given.timeout * 1000))
    try:
        mapped = map_client_settings(settings)
    except OptionError as error:
        raise _as_given(error) from None
    if (line := mapped.no_effect_line(given.command_config)) is not None:
        print(line, file=sys.stderr)
    return mapped


def _as_given(error: OptionError) -> OptionError:
    """Return the error with the names that a user of the command wrote."""
    problems = []
    for problem in error.problems:
        name = problem.option.removeprefix("kafka.")
        option = _GIVEN_AS.get(name, name)
        problems.append(OptionError(option, problem.value, problem.allowed, problem.problem))
    return problems[0] if len(problems) == 1 else SeveralOptionsError(problems)


def _from_file(name: str) -> dict[str, str]:
    """Read the settings that a report uses; prints which of the others have no effect.

    Settings that no Kafka client knows are kept: they are refused later, with the nearest name.
    """
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        allowed = f"a file that can be read ({error.strerror})"
        raise OptionError("--command-config", name, allowed) from error
    settings = decode_properties(content, "--command-config")
    ignored = settings.keys() & (KNOWN_SETTINGS | ADMIN_SETTINGS) - _USED - _NOT_FROM_FILE
    if ignored:
        print(
            f"{name}: these settings have no effect here: {', '.join(sorted(ignored))}",
            file=sys.stderr,
        )
    return {n: text for n, text in settings.items() if n not in ignored | _NOT_FROM_FILE}


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
