"""The options that the commands share: where the brokers are, and how to log in.

    --bootstrap-servers HOST:PORT,… [--command-config FILE] [--timeout SECONDS]

An error of an option is one line, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from ..errors import OptionError, SeveralOptionsError
from .client_settings import (
    ADMIN_SETTINGS,
    CONNECTION_SETTINGS,
    KNOWN_SETTINGS,
    ClientSettings,
    map_client_settings,
)
from .properties_file import decode_properties

DONE, FAILED = range(2)

_TIMEOUT_S = 10.0
_LONGEST_S = 300.0

#: Settings that only the command line decides, whatever the file says, as in Kafka's own tools.
_NOT_FROM_FILE = frozenset({"bootstrap.servers", "group.id", "request.timeout.ms"})

#: The option that sets a setting.
_GIVEN_AS = {"bootstrap.servers": "--bootstrap-servers", "request.timeout.ms": "--timeout"}


class CommandParser(argparse.ArgumentParser):
    """Prints an error as one line, and exits with 1."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit."""
        self.exit(FAILED, f"error: {message}\n")


def print_what_the_encoding_has() -> None:
    """Print "?" for what standard output cannot encode, unless the user chose how to: columns
    stay aligned."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors in ("strict", "surrogateescape"):
        out.reconfigure(errors="replace")


def drop_output() -> int:
    """After a BrokenPipeError, as with ``| head``: print no more, also not at the exit.

    Returns the exit code.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Add ``--bootstrap-servers``."""
    parser.add_argument(
        "--bootstrap-servers", "--bootstrap-server", required=True, metavar="HOST:PORT,…"
    )


def add_command_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--command-config``."""
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="settings of the Java client, as Kafka's own tools take them: logins, certificates",
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add ``--timeout``, in seconds."""
    parser.add_argument(
        "--timeout",
        type=_patience,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long the brokers may take to answer ({_TIMEOUT_S:g})",
    )


def seconds(text: str, least: float = 0.1) -> float:
    """Parse a number of seconds, for argparse."""
    try:
        parsed = float(text)
    except ValueError:
        parsed = 0.0
    if not least <= parsed <= _LONGEST_S:  # neither is NaN
        raise argparse.ArgumentTypeError(f"{text!r}: seconds from {least:g} to {_LONGEST_S:g}")
    return parsed


def _patience(text: str) -> float:
    return seconds(text, 1.0)


def client_settings(
    given: argparse.Namespace, used: Collection[str] = CONNECTION_SETTINGS
) -> ClientSettings:
    """Check the connection's options; prints which settings of the file have no effect.

    Parameters
    ----------
    given : argparse.Namespace
        What a parser with the three options has parsed.
    used : collection of str
        The Java settings that have an effect on this command.

    Raises
    ------
    OptionError
        The file cannot be read, or a setting is wrong.
    """
    settings = {} if given.command_config is None else _from_file(given.command_config, used)
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


def _from_file(name: str, used: Collection[str]) -> dict[str, str]:
    """Read the settings that a command uses; prints which of the others have no effect.

    Settings that no Kafka client knows are kept: they are refused later, with the nearest name.
    """
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        allowed = f"a file that can be read ({error.strerror})"
        raise OptionError("--command-config", name, allowed) from error
    settings = decode_properties(content, "--command-config")
    ignored = settings.keys() & (KNOWN_SETTINGS | ADMIN_SETTINGS) - set(used) - _NOT_FROM_FILE
    if ignored:
        print(
            f"{name}: these settings have no effect here: {', '.join(sorted(ignored))}",
            file=sys.stderr,
        )
    return {n: text for n, text in settings.items() if n not in ignored | _NOT_FROM_FILE}
