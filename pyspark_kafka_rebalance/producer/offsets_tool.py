"""The command ``offsets``: list, set and reset a producer group's restart points.

    alias offsets="python -m pyspark_kafka_rebalance.producer offsets"
    offsets list --bootstrap-servers broker:9092 --group db1
    offsets set 0=4711:3 2=4700:0 --bootstrap-servers broker:9092 --group db1
    offsets reset 2 --bootstrap-servers broker:9092 --group db1

``set`` and ``reset`` are refused while the group has members. Exit codes: 0; 1 for what the brokers
refuse; 2 for wrong arguments; 3 where the group is active; 4 where there is no such group.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.errors import KafkaError

from ..consumer.group_description import GroupDescription
from ..errors import KafkaRebalanceError, OptionError
from ..settings.client_settings import map_client_settings
from .stored_points import GroupIsActiveError, StoredPoint, StoredPoints, UnknownGroupError

#: How many characters of a restart point the table shows.
_SHOWN = 60

DONE, REFUSED, WRONG_ARGUMENTS, ACTIVE, UNKNOWN_GROUP = range(5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = _parse(arguments)
    try:
        settings = dict(given.kafka)
        client = map_client_settings({**settings, "bootstrap.servers": given.bootstrap_servers})
        if (line := client.no_effect_line("--kafka")) is not None:
            print(line, file=sys.stderr)
        stored = StoredPoints(client.client, given.group, given.restart_topic)
        if given.command == "list":
            _print_list(stored.read(), stored.describe(), stored.topic, given.json)
        elif given.command == "set":
            _write(stored, dict(given.points))
        else:
            _write(stored, dict.fromkeys(stored.read() if given.all else given.source_partitions))
    except OptionError as error:
        return _failed(error, WRONG_ARGUMENTS)
    except GroupIsActiveError as error:
        return _failed(error, ACTIVE)
    except UnknownGroupError as error:
        return _failed(error, UNKNOWN_GROUP)
    except (KafkaRebalanceError, KafkaError, OSError) as error:
        return _failed(error, REFUSED)
    return DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    common.add_argument("--group", required=True, metavar="GROUP_ID", help="the producer group")
    common.add_argument(
        "--restart-topic", metavar="TOPIC", help="default: __producer_group.GROUP_ID"
    )
    common.add_argument(
        "--kafka",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a setting of the Java client, as in --kafka security.protocol=SSL; may be repeated",
    )
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.producer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    offsets = parser.add_subparsers(required=True, metavar="offsets").add_parser("offsets")
    commands = offsets.add_subparsers(dest="command", required=True)
    listing = commands.add_parser(
        "list",
        parents=[common],
        help="list the restart points and the owner of each source partition",
    )
    listing.add_argument("--json", action="store_true", help="for programs")
    setting = commands.add_parser(
        "set", parents=[common], help="set the restart points where instances continue"
    )
    setting.add_argument("points", nargs="+", type=_point, metavar="SOURCE_PARTITION=RESTART_POINT")
    resetting = commands.add_parser(
        "reset",
        parents=[common],
        help="clear restart points, as if nothing had ever been committed",
    )
    resetting.add_argument("source_partitions", nargs="*", type=int, metavar="SOURCE_PARTITION")
    resetting.add_argument("--all", action="store_true", help="all source partitions")
    given = parser.parse_args(arguments)
    if given.command == "reset" and given.all == bool(given.source_partitions):
        resetting.error("name source partitions, or pass --all")
    return given


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        # The text is not quoted: it may be part of a password.
        raise argparse.ArgumentTypeError("NAME=VALUE")
    return name, value


def _point(text: str) -> tuple[int, str]:
    number, equals, point = text.partition("=")
    if not equals or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected SOURCE_PARTITION=RESTART_POINT")
    return int(number), point


def _failed(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _write(stored: StoredPoints, points: dict[int, str | None]) -> None:
    for number, before in stored.write(points).items():
        was = "none" if before is None or before.value is None else repr(before.value)
        now = "none" if points[number] is None else repr(points[number])
        print(f"source partition {number}: {was} -> {now}")


def _print_list(
    points: Mapping[int, StoredPoint | None], group: GroupDescription, topic: str, as_json: bool
) -> None:
    owners = {
        partition.partition: member.client_id
        for member in group.members
        for partition in member.assigned
        if partition.topic == topic
    }
    if as_json:
        rows = {
            str(number): {
                "restart_point": None if point is None else point.value,
                "committed_at_ms": None if point is None else point.timestamp_ms,
                "owner": owners.get(number),
            }
            for number, point in points.items()
        }
        print(json.dumps({"state": group.state, "source_partitions": rows}))
        return
    state = "Empty" if group.state == "Dead" else group.state
    title = f"{topic}: {state}, {len(group.members)} members"
    headings = ("source partition", "restart point", "committed at (UTC)", "owner")
    _print_table(title, headings, [_row(n, p, owners.get(n)) for n, p in points.items()])


def _row(number: int, point: StoredPoint | None, owner: str | None) -> tuple[str, ...]:
    if point is None:
        return str(number), "-", "-", owner or "-"
    text = "-" if point.value is None else point.value
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    at = datetime.datetime.fromtimestamp(point.timestamp_ms / 1000, datetime.timezone.utc)
    return str(number), shown, f"{at:%Y-%m-%d %H:%M:%S}", owner or "-"


def _print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print with rich on a terminal, if installed; otherwise as aligned text, for other tools."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            table: Any = Table(title=title, title_justify="left")
            for heading in headings:
                table.add_column(heading)
            for row in rows:
                table.add_row(*map(Text, row))  # no markup: a restart point may have brackets
            Console().print(table)
            return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    print(title)
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
