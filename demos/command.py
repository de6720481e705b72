"""Shared parts of the demos' command lines."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from pyspark_kafka_rebalance.testing import KafkaCluster, LocalKafkaError, kafka_from_environment


def add_figures(parser: argparse.ArgumentParser, defaults: object, **meanings: str) -> None:
    """Add an option for each of these settings; their ``defaults`` are positive numbers."""
    for name, meaning in meanings.items():
        default = getattr(defaults, name)
        counted = isinstance(default, int)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=_positive(type(default)),
            default=default,
            metavar="N" if counted else "S",
            help=f"{meaning} (default: {default if counted else f'{default:g}'})",
        )


def add_outputs(parser: argparse.ArgumentParser, picture: Path, keep: str) -> None:
    """Add ``--picture`` with this default, and ``--keep``, which keeps ``keep``."""
    parser.add_argument(
        "--picture", type=Path, default=picture, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--keep", action="store_true", help=f"keep {keep}")


def _positive(number: type[int] | type[float]) -> Any:
    """Return a parser of positive numbers for ``add_argument``'s ``type``."""

    def parse_positive(text: str) -> float:
        value = number(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text}: not positive")
        return value

    return parse_positive


def run_demo(run: Callable[[Console], bool]) -> int:
    """Run a demo, and end everything it started.

    Parameters
    ----------
    run : callable
        Returns whether the demo proved its point.

    Returns
    -------
    int
        The exit code: 0 if ``run`` returns True, 1 if False; 2 if it failed before that; 130 after
        Ctrl-C.
    """
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Handled like Ctrl-C: everything the demo started ends with it. Also SIGINT itself: a job
        # in the background of a script inherits that it is ignored.
        signal.signal(number, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    try:
        proved = run(console)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    except (LocalKafkaError, TimeoutError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 2
    console.print(f"took {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if proved else 1


@contextmanager
def kafka_topic_and_folder(
    console: Console, prefix: str, partitions: int, keep: bool
) -> Iterator[tuple[KafkaCluster, str, Path]]:
    """Yield a cluster, the name of a new topic in it, and a new folder, deleted unless ``keep``."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-"))
        if keep:
            stack.callback(console.print, f"kept: {folder}")
        else:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        console.print("starting Kafka", highlight=False)
        kafka = stack.enter_context(kafka_from_environment())
        topic = f"{prefix}-{uuid.uuid4().hex[:6]}"
        kafka.create_topic(topic, partitions=partitions)
        stack.callback(kafka.delete_topic, topic)
        yield kafka, topic, folder
