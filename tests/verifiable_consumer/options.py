"""The command line of Kafka's VerifiableConsumer (Apache Kafka 4.3), for DeferredRevokeConsumer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.settings.client_settings import map_client_settings
from pyspark_kafka_rebalance.settings.properties_file import decode_properties
from pyspark_kafka_rebalance.settings.values import INT_MAX, integer, parse_value

COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"

_COUNT = integer(1, INT_MAX)

#: Settings that the command line decides, whatever the settings file says, as in Java.
_NOT_FROM_FILE = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "group.id",
        "group.protocol",
        "group.remote.assignor",
        "partition.assignment.strategy",
    }
)


class _Parser(argparse.ArgumentParser):
    """Exits with 1 if an option is wrong, as Java's does."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``config`` of the result is for DeferredRevokeConsumer."""
    parser = _Parser(
        prog="verifiable-consumer",
        description="Consumes one topic and prints what happens as JSON lines, with the options "
        "and the events of Kafka's own VerifiableConsumer.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--bootstrap-server", required=True, metavar="HOST1:PORT1[,HOST2:PORT2[...]]")
    add("--topic", required=True, help="consume this topic")
    add("--group-protocol", default="classic", type=str.lower, help="classic or consumer")
    add("--group-remote-assignor", help="only used if the group protocol is consumer")
    add("--group-id", required=True)
    add("--group-instance-id", help="makes it a static member")
    add(
        "--max-messages",
        type=int,
        default=-1,
        help="stop after this many records; -1 (default): never",
    )
    add("--session-timeout", type=int, metavar="TIMEOUT-MS", help="classic protocol only")
    add("--verbose", action="store_true", help="print every record, too")
    add(
        "--enable-autocommit",
        action="store_true",
        help="commit in the background, without printing commits",
    )
    add("--reset-policy", choices=("earliest", "latest", "none"), default="earliest")
    add("--assignment-strategy", default=COOPERATIVE, help="only %(default)s")
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--consumer.config", dest="command_config", help="older name of --command-config"
    )
    files.add_argument(
        "--command-config", metavar="CONFIG-FILE", help="file with settings, by Java's names"
    )
    given = sys.argv[1:] if arguments is None else arguments
    if not given:  # as in Java
        parser.print_help()
        parser.exit()
    parsed = parser.parse_args(given)
    try:
        parsed.config = _config(parsed)
    except (OptionError, OSError) as error:
        parser.error(str(error))
    return parsed


def _config(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of DeferredRevokeConsumer; raises OptionError or OSError."""
    classic = parsed.group_protocol == "classic"
    if classic and parsed.assignment_strategy != COOPERATIVE:
        raise OptionError("--assignment-strategy", parsed.assignment_strategy, COOPERATIVE)
    if not classic and parsed.session_timeout is not None:
        # As in Java: it is the group's setting, not the member's (KIP-848).
        allowed = "no value with --group-protocol consumer; the broker sets it for the group"
        raise OptionError("--session-timeout", parsed.session_timeout, allowed)
    settings: dict[str, str] = {}
    if parsed.command_config is not None:
        content = Path(parsed.command_config).read_bytes()
        settings = decode_properties(content, "--command-config")
    given = {name: text for name, text in settings.items() if name not in _NOT_FROM_FILE}
    poll_records = given.pop("max.poll.records", None)  # the Spark source has no use for it
    mapped = map_client_settings({**given, "bootstrap.servers": parsed.bootstrap_server})
    config = {
        **mapped.client,
        **mapped.consumer,
        **mapped.fetch,
        "auto_offset_reset": parsed.reset_policy,
        "group_id": parsed.group_id,
        "group_protocol": parsed.group_protocol,
    }
    if poll_records is not None:
        config["max_poll_records"] = parse_value("max.poll.records", poll_records, _COUNT)
    if parsed.group_instance_id is not None:
        config["group_instance_id"] = parsed.group_instance_id
    if parsed.session_timeout is not None:
        config["session_timeout_ms"] = parsed.session_timeout
    if not classic and parsed.group_remote_assignor is not None:
        config["group_remote_assignor"] = parsed.group_remote_assignor
    return config
