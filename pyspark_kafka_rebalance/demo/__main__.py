"""Command line of the demo."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ..testing import LocalKafkaError, kafka_from_environment
from ..testing.ledger import read_ledger, tally
from ..testing.rebalances.figures import deliveries_of, figures_of
from ..testing.rebalances.scenario import Scenario, Settings
from .picture import save_picture
from .report import print_report, summary
from .screen import Screen

_TITLES = {
    "deferred": "One consumer group, three Spark queries that come and go",
    "blocking": "One consumer group, three consumers that drain inside their rebalance listener",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.demo",
        description="Three readers share a consumer group while they join and leave. "
        "KAFKA_BOOTSTRAP_SERVERS names a cluster to use; without it a broker is started.",
    )
    parser.add_argument(
        "--peer",
        choices=("deferred", "blocking"),
        default="deferred",
        help="deferred (default): Spark queries with kafka_deferred; blocking: consumers that "
        "drain inside their rebalance listener",
    )
    defaults = Settings()
    parser.add_argument(
        "--seconds-per-phase",
        type=_positive(float),
        default=defaults.seconds_per_phase,
        metavar="S",
        help="calm before each change of the group (default: %(default)g)",
    )
    parser.add_argument(
        "--rate",
        type=_positive(int),
        default=defaults.rate,
        metavar="N",
        help="records per second in total (default: %(default)s)",
    )
    parser.add_argument(
        "--partitions",
        type=_positive(int),
        default=defaults.partitions,
        metavar="N",
        help="partitions of the topic, at least 3 (default: %(default)s)",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="default: artifacts/rebalance.png, with --peer blocking rebalance-blocking.png",
    )
    parser.add_argument("--keep", action="store_true", help="keep ledger, checkpoints and logs")
    given = parser.parse_args(arguments)
    if given.partitions < 3:
        parser.error("--partitions: three readers need at least 3")
    if given.picture is None:
        suffix = "" if given.peer == "deferred" else f"-{given.peer}"
        given.picture = Path("artifacts", f"rebalance{suffix}.png")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns
    -------
    int
        0; 1 when Spark queries lost or duplicated a record; 2 when the demo did not get that far;
        130 after Ctrl-C.
    """
    given = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Like Ctrl-C: whatever the demo started ends with it.
        signal.signal(number, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    settings = Settings(given.peer, given.seconds_per_phase, given.rate, given.partitions)
    try:
        return _run(console, settings, given.picture, given.keep)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    except (LocalKafkaError, TimeoutError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 2


def _run(console: Console, settings: Settings, picture: Path, keep: bool) -> int:
    began = time.monotonic()
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="rebalance-demo-"))
        if keep:
            stack.callback(console.print, f"kept: {work}")
        else:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        console.print("starting Kafka", highlight=False)
        kafka = stack.enter_context(kafka_from_environment())
        name = f"rebalance-demo-{uuid.uuid4().hex[:6]}"
        kafka.create_topic(name, partitions=settings.partitions)
        stack.callback(kafka.delete_topic, name)
        scenario = Scenario(settings, kafka.bootstrap_servers, name, name, work)
        where = f"group {name} at {kafka.bootstrap_servers}"
        with Screen(console, where, scenario.lines) as screen:
            course = scenario.run(screen)
        ledger = read_ledger(scenario.ledger)
    deliveries = deliveries_of(ledger)
    found = tally(ledger, course.end_offsets)
    figures = figures_of(deliveries, course.rebalances)
    title = _TITLES[settings.peer]
    print_report(console, title, sum(course.end_offsets.values()), found, figures)
    save_picture(picture, title, summary(found, figures), course, deliveries)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"took {time.monotonic() - began:.0f} s", highlight=False)
    return 1 if settings.peer == "deferred" and (found.lost or found.duplicated) else 0


def _positive(number: type[int] | type[float]) -> Any:
    def parse_positive(text: str) -> float:
        value = number(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text}: not positive")
        return value

    return parse_positive


if __name__ == "__main__":
    sys.exit(main())
