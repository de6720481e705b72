"""The command line: ``python -m pyspark_kafka_rebalance [doctor]``.

    python -m pyspark_kafka_rebalance doctor
    python -m pyspark_kafka_rebalance doctor --bootstrap-servers broker:9092 --topic orders

Run it as the job runs: with the same Python, in the same folder and environment, on the driver's
host. Each line is ok, hint, warn or fail, with a finding and advice. The exit code is 1 when
something fails, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import OptionError
from ..settings.command_line import drop_output
from ..settings.names import utf8
from .facts import BrokerFacts, PythonFacts
from .findings import Finding, Level, fail, hint, total
from .judgement import (
    judge_brokers,
    judge_discovery,
    judge_driver,
    judge_group,
    judge_java,
    judge_settings,
    judge_spark_python,
    judge_topic,
)
from .overview import overview
from .python_probe import ask_python
from .spark_probe import (
    ask_spark_java,
    is_compiled,
    python_of_planner,
    python_of_workers,
    python_paths,
    read_defaults,
    spark_home,
)

#: What a variable each can switch off.
_COMPILED = ("DECODER", "ENCODER")

_BROKER_PATIENCE_MS = "10000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = _parse(arguments)
    try:
        return _print_findings(given) if given.command else _print_overview()
    except BrokenPipeError:
        return drop_output()


def _print_overview() -> int:
    print("\n".join(overview()), flush=True)
    return 0


def _print_findings(given: argparse.Namespace) -> int:
    # The findings say it all; without this handler, warnings would go to the screen.
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    levels = []
    for finding in _findings(given):
        print(finding, flush=True)
        levels.append(finding.level)
    print(total(levels), flush=True)
    return 1 if Level.FAIL in levels else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="doctor")
    doctor = commands.add_parser(
        "doctor",
        help="check Python, Java, Spark and brokers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,…", help="check these brokers, too"
    )
    doctor.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="the Java client's settings for secured brokers, as Kafka's own tools take them",
    )
    doctor.add_argument(
        "--topic",
        action="append",
        type=utf8,
        default=[],
        help="check that it exists and may be read",
    )
    doctor.add_argument(
        "--group", action="append", type=utf8, default=[], help="check that it may be joined"
    )
    given = parser.parse_args(arguments)
    of_brokers = given.command and (given.topic or given.group or given.command_config)
    if of_brokers and not given.bootstrap_servers:
        doctor.error("--topic, --group and --command-config need --bootstrap-servers")
    return given


def _findings(given: argparse.Namespace) -> Iterator[Finding]:
    yield from local_findings()
    if given.bootstrap_servers:
        yield from _of_brokers(given)


def local_findings() -> Iterable[Finding]:
    """The findings about this machine; asks no broker."""
    environment = os.environ
    home = spark_home(environment, "")
    driver = ask_python(sys.executable, python_paths(home))
    choices = (environment.get(f"PYSPARK_KAFKA_REBALANCE_{name}", "") for name in _COMPILED)
    yield from judge_driver(driver, os.getcwd(), *choices)
    pyspark = driver.versions.get("pyspark")
    if pyspark is None:
        return
    home = home or spark_home(environment, driver.pyspark_file)
    yield judge_java(ask_spark_java(environment))
    yield from _of_spark_pythons(driver, python_paths(home))
    defaults = read_defaults(environment, home)
    uds_mode = environment.get("PYSPARK_UDS_MODE", "")
    yield from judge_settings(pyspark, defaults, uds_mode, is_compiled(home))


def _of_spark_pythons(driver: PythonFacts, paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings on the Pythons that Spark starts for planner and tasks; usually just one."""
    named_planner, planner = python_of_planner(os.environ)
    named_workers, workers = python_of_workers(os.environ)
    of_planner = ask_python(planner, paths)
    one = planner == workers
    role = "load(), planner and tasks" if one else "load() and planner"
    finding = judge_spark_python(of_planner, driver, named_planner, role)
    yield finding
    if finding.level is not Level.FAIL:
        yield judge_discovery(of_planner)
    if not one:
        yield judge_spark_python(ask_python(workers, paths), driver, named_workers, "tasks")


def _of_brokers(given: argparse.Namespace) -> Iterator[Finding]:
    from ..settings.client_settings import ADMIN_SETTINGS, map_client_settings
    from ..settings.properties_file import decode_properties
    from .broker_probe import connected

    servers = given.bootstrap_servers
    settings = {"request.timeout.ms": _BROKER_PATIENCE_MS}
    try:
        if given.command_config:
            read = decode_properties(given.command_config.read_bytes(), "--command-config")
            settings |= {name: text for name, text in read.items() if name not in ADMIN_SETTINGS}
        settings["bootstrap.servers"] = servers
        mapped = map_client_settings(settings)
        client_config = mapped.client
    except (OSError, OptionError) as error:
        yield fail("settings of the brokers", str(error), "correct --command-config or the address")
        return
    if mapped.without_effect:
        names = ", ".join(mapped.without_effect)
        yield hint("settings of the brokers", f"no effect here: {names}", "they may be left out")
    with connected(servers, client_config) as probe:
        brokers = probe if isinstance(probe, BrokerFacts) else probe.brokers()
        yield from judge_brokers(brokers)
        if not isinstance(probe, BrokerFacts) and not brokers.error:
            yield from (judge_topic(probe.topic(name)) for name in given.topic)
            yield from (judge_group(probe.group(group_id)) for group_id in given.group)
