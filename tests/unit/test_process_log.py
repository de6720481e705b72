"""What Spark's Python processes write into their log, and what other processes do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta, timezone

import pytest

OURS = "pyspark_kafka_rebalance.source.group.others.coverage"
#: As log collectors recognise Spark's lines.
LINE = re.compile(r"(\d\d/\d\d/\d\d \d\d:\d\d:\d\d) (WARN|ERROR|FATAL) ([\w.]+): (.*)")

#: A process of Spark's, by the name of its main module.
SPARKS = """
import importlib.machinery, sys
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
"""
LOGS = f"""
import logging, pyspark_kafka_rebalance.source
log = logging.getLogger({OURS!r})
log.info("not a warning")
log.warning("waiting for %s", ["orders-0"])
"""


def stderr_of(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "TZ": "Asia/Tokyo", **environment},
        check=True,
        timeout=120,
    )
    assert done.stdout == ""
    return done.stderr


def test_lines_have_the_time_the_level_and_the_logger_as_sparks_own() -> None:
    code = """
    logging.getLogger("kafka.cluster").error("two\\nlines")
    try:
        1 / 0
    except ZeroDivisionError:
        log.critical("failed", exc_info=True)
    """
    first, second, rest, third, *stack = stderr_of(
        SPARKS + LOGS + textwrap.dedent(code)
    ).splitlines()
    found = [LINE.fullmatch(line) for line in (first, second, third)]
    assert [line and line.group(2, 3, 4) for line in found] == [
        ("WARN", OURS, "waiting for ['orders-0']"),
        ("ERROR", "kafka.cluster", "two"),
        ("FATAL", OURS, "failed"),
    ]
    assert rest == "lines"
    assert stack[-1] == "ZeroDivisionError: division by zero"
    tokyo = timezone(timedelta(hours=9))
    for line in found:
        assert line is not None
        at = datetime.strptime(line.group(1), "%y/%m/%d %H:%M:%S").replace(tzinfo=tokyo)
        assert abs(datetime.now(tokyo) - at) < timedelta(minutes=5), "as log4j: local time"


def test_lines_are_json_if_asked_for() -> None:
    """With the fields of Spark's structured logging; ``SPARK_LOG_SCHEMA`` reads them."""
    code = """
    try:
        1 / 0
    except ZeroDivisionError:
        log.error("failed", exc_info=True)
    """
    text = stderr_of(SPARKS + LOGS + textwrap.dedent(code), PYSPARK_KAFKA_REBALANCE_LOG="json")
    first, second = (json.loads(line) for line in text.splitlines())
    at = datetime.strptime(first.pop("ts"), "%Y-%m-%dT%H:%M:%S.%f%z")
    assert abs(datetime.now(timezone.utc) - at) < timedelta(minutes=5)
    message = "waiting for ['orders-0']"
    assert first == {"level": "WARN", "msg": message, "context": {}, "logger": OURS}
    assert second["exception"]["class"] == "ZeroDivisionError"
    assert second["exception"]["msg"] == "division by zero"
    assert second["exception"]["stacktrace"][-1]["line"].isdigit()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # The application's own process.
        (LOGS, "waiting for ['orders-0']\n"),
        # Logging that somebody has configured, before or afterwards.
        (
            SPARKS + "import logging; logging.basicConfig(format='mine %(message)s')" + LOGS,
            "mine waiting for ['orders-0']\n",
        ),
        (
            SPARKS
            + "import logging, pyspark_kafka_rebalance.source\n"
            + "logging.basicConfig(format='mine %(message)s')"
            + LOGS,
            "mine waiting for ['orders-0']\n",
        ),
        (
            SPARKS + "import logging; logging.lastResort = None" + LOGS,
            f'No handlers could be found for logger "{OURS}"\n',
        ),
        # Code of others in a worker.
        (
            SPARKS + "import logging, pyspark_kafka_rebalance.source\n"
            "logging.getLogger('my.udf').warning('%s', 1)\n"
            "logging.getLogger('kafkaesque').info('2')",
            "1\n",
        ),
    ],
    ids=["application", "configured before", "configured after", "switched off", "others"],
)
def test_what_is_configured_and_what_others_log_stay_as_they_are(code: str, expected: str) -> None:
    assert stderr_of(code) == expected


def test_it_is_set_up_once_and_loads_little() -> None:
    code = """
    import logging, sys, importlib
    import pyspark_kafka_rebalance.source as source
    first = logging.lastResort
    importlib.reload(source)
    assert logging.lastResort is first
    assert not {"kafka", "pyarrow", "pyspark"} & set(sys.modules)
    """
    assert stderr_of(SPARKS + textwrap.dedent(code)) == ""
