"""What every test may ask for: ``kafka``, ``kafka3``, ``topic_name``, ``group_id``."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator

import pytest
from _pytest._code.code import ExceptionRepr
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from pyspark_kafka_rebalance.fetch import connections
from pyspark_kafka_rebalance.testing import LocalKafka, LocalKafkaError

from .chosen_tests import left_out
from .left_threads import left_threads, note_threads
from .parallel_run import (
    UNIT_TESTS_NICE,
    FilesByWhatTheyStart,
    file_of,
    needs_three_brokers,
    role_of,
    shares_of_the_machine,
)

# How long an example takes says more of what else this machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

#: Last lines of an internal error, and of what the package warned of during a test that failed.
_QUOTED = 16

pytest_plugins = ["pyspark_kafka_rebalance.testing.pytest_fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also the long tests, and with both group protocols"
    )
    parser.addoption(
        "--one-protocol", action="store_true", help="no test with both, whatever its file says"
    )


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    if seed := os.environ.get("HISTORIES_SEED"):  # tests/unit/histories.py
        config.option.hypothesis_seed = seed
    os.nice(getattr(config, "workerinput", {}).get("nice", 0))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    if node.config.getvalue("dist") == "loadfile" and role_of(node.gateway.id) == "unit":
        node.workerinput["nice"] = UNIT_TESTS_NICE


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector, and exempt from it what stays for the whole run.

    A process of ``make test`` has 400,000 such objects, and each full collection visits them all.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # of what the conftest.py of a folder leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    chosen = config.invocation_params.args
    if any("::" in str(argument) for argument in chosen):
        return  # somebody wants just these
    out = left_out(items, config.getoption("--one-protocol"))
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> FilesByWhatTheyStart | None:
    return FilesByWhatTheyStart(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With the brokers and Sparks that a test is the first to want: to start them takes most."""
    assert item.config.cache is not None
    lock = item.config.cache.mkdir("machine") / "shares"
    with shares_of_the_machine(lock, _shares_of(item)):
        return (yield)


#: The broker that the files of this process share, if there is one yet.
_shared: list[LocalKafka] = []


@pytest.fixture(scope="session")
def kafka(kafka: LocalKafka) -> LocalKafka:
    """As the package has it."""
    _shared.append(kafka)
    return kafka


#: The three brokers that files of this process share while one after the other needs them.
_three: list[LocalKafka] = []


@pytest.fixture(scope="module")
def kafka3() -> Iterator[LocalKafka]:
    """As the package has it, but those of the file before, if it had some; all of them run."""
    if not _three:
        # How soon a transaction is ended whose time is up; 10 s.
        ends_soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
        _three.append(LocalKafka(3, broker_config=ends_soon).start())
    (brokers,) = _three
    yield brokers
    brokers.resume()
    try:
        for broker_id in set(brokers.broker_ids) - set(brokers.running):
            brokers.restart(broker_id)
    except LocalKafkaError:
        _three.pop().close()  # the next file starts others
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A client that is not closed would log, and draw random numbers, in the tests after it."""
    yield
    note_threads(item.nodeid)
    if nextitem is None or nextitem.path != item.path:
        connections.close_all()  # to brokers of this file, which are gone
        for broker in _shared + _three:
            broker.close_clients()
        if nextitem is None or not needs_three_brokers(file_of(nextitem.nodeid)):
            while _three:
                _three.pop().close()
        left = left_threads()
        assert not left, f"{item.path.name} leaves {len(left)} threads:\n" + "\n".join(left)


#: What went wrong in pytest itself or in a hook, of this process and of those that run the tests.
_internal_errors: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _internal_errors.append(str(excrepr))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """After an internal error pytest does not say which tests failed; CI keeps the end alone."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _internal_errors and reporter is not None:
        reporter.short_test_summary()
        for error in reversed(_internal_errors):  # the first has the cause of the others
            reporter.write_line("\n".join(["internal error:", *error.splitlines()[-_QUOTED:]]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """With a failure goes what the package warned of: why a member was lost, which stays short.

    Of CI no more of the log is kept (``.ci/run``).
    """
    report: pytest.TestReport = yield
    if report.failed and isinstance(report.longrepr, ExceptionRepr):
        warned = re.findall(
            r"^(?:WARNING|ERROR) +(?:pyspark_kafka_rebalance|kafka\S* .*timed out).*$",
            report.caplog,
            re.M,
        )
        if warned:
            report.longrepr.addsection("warnings of the package", "\n".join(warned[-_QUOTED:]))
    return report


def _shares_of(item: pytest.Item) -> int:
    """By the processors that a test keeps busy, and by how much it minds when they are."""
    if item.path.parent.name == "unit":
        return 0
    fixtures = set(getattr(item, "fixturenames", ()))
    starts_brokers = "kafka3" in fixtures and not _three
    if item.get_closest_marker("several_sparks") is not None or starts_brokers:
        return 4
    return 2 if fixtures & {"spark", "kafka3"} else 1
