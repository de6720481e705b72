"""What every test may ask for: ``kafka``, ``kafka3``, ``topic_name``, ``group_id``."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

# The brokers and Sparks of tests do not live long: without C2 and G1 they start in half the time,
# and tests take a quarter less of the processor. Read by every Java of 9 and later.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")

pytest_plugins = ["pyspark_kafka_rebalance.testing.pytest_fixtures"]


@pytest.fixture(autouse=True)
def _the_machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Hold the machine for some tests, and share it for the others (pytest-xdist).

    Held for those marked ``alone``, and where three brokers elect leaders within time limits.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    marked = request.node.get_closest_marker("alone") is not None
    alone = marked or "kafka3" in request.fixturenames
    of_this_run = tmp_path_factory.getbasetemp().parent
    with open(of_this_run / "machine.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
