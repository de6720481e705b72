"""What ``python -m pyspark_kafka_rebalance doctor`` makes of what it finds."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import CoordinatorNotAvailableError, KafkaTimeoutError

from pyspark_kafka_rebalance import __version__
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription
from pyspark_kafka_rebalance.doctor import broker_probe, command
from pyspark_kafka_rebalance.doctor.broker_probe import BrokerProbe
from pyspark_kafka_rebalance.doctor.facts import (
    BrokerFacts,
    GroupFacts,
    JavaFacts,
    PythonFacts,
    TopicFacts,
)
from pyspark_kafka_rebalance.doctor.findings import Level, fail, ok, total
from pyspark_kafka_rebalance.doctor.judgement import (
    JAVA,
    NAME,
    SUPPORTED,
    judge_brokers,
    judge_discovery,
    judge_driver,
    judge_group,
    judge_java,
    judge_settings,
    judge_spark_python,
    judge_topic,
    numbers_of,
)
from pyspark_kafka_rebalance.doctor.overview import COMMANDS
from pyspark_kafka_rebalance.doctor.python_probe import ask_python, parse_answer
from pyspark_kafka_rebalance.doctor.spark_probe import (
    python_of_planner,
    python_of_workers,
    python_paths,
    read_defaults,
    spark_home,
)
from pyspark_kafka_rebalance.testing.java import MINIMUM_VERSION

ROOT = Path(__file__).parents[2]
DRIVER = PythonFacts(
    "/venv/bin/python",
    executable="/venv/bin/python",
    prefix="/venv",
    version=(3, 11, 7),
    versions={"kafka": "3.0.12", "pyarrow": "26.0.1", "pyspark": "4.3.0", NAME: __version__},
    package_file=f"/venv/lib/{NAME}/__init__.py",
    decoder=True,
    encoder=True,
    listed=frozenset({NAME}),
    sources=frozenset({NAME}),
)
OTHER = replace(DRIVER, command="python3", executable="/usr/bin/python3", prefix="/usr")


def without(facts: PythonFacts, name: str, reason: str = "ModuleNotFoundError") -> PythonFacts:
    return replace(facts, versions={**facts.versions, name: None}, errors={name: reason})


def of_driver(facts: PythonFacts, folder: str = "/elsewhere") -> dict[str, Any]:
    return {finding.subject: finding for finding in judge_driver(facts, folder, "")}


def test_a_driver_that_has_everything() -> None:
    found = of_driver(DRIVER)
    assert {finding.level for finding in found.values()} == {Level.OK}
    compiled = ["compiled decoder", "compiled encoder"]
    assert list(found) == ["Python", "kafka-python", "pyarrow", *compiled, "PySpark"]


def test_an_old_python() -> None:
    found = of_driver(replace(DRIVER, version=(3, 9, 2)))["Python"]
    assert found.level is Level.FAIL
    assert "3.10" in found.advice


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [
        ("kafka", "3.0.4", Level.FAIL),
        ("kafka", "3.0.5", Level.OK),
        ("kafka", "3.1.0", Level.FAIL),
        ("kafka", None, Level.FAIL),
        ("pyarrow", "14.0.2", Level.FAIL),
        ("pyarrow", "15.0.0", Level.OK),
        ("pyspark", "3.5.1", Level.FAIL),
        ("pyspark", "4.0.0", Level.OK),
        ("pyspark", "4.3.1.dev0", Level.OK),
        ("pyspark", "4.4.0", Level.FAIL),
        ("pyspark", None, Level.WARN),
    ],
)
def test_libraries(name: str, version: str | None, level: Level) -> None:
    facts = replace(DRIVER, versions={**DRIVER.versions, name: version})
    subject, _, wanted = SUPPORTED[name]
    found = of_driver(facts)[subject]
    assert found.level is level
    assert (wanted in found.advice) == (level is not Level.OK)


def test_what_is_supported_is_what_the_installation_asks_for() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    asked = {*setup["options"]["install_requires"].split()}
    asked |= {*setup["options.extras_require"]["spark"].split()}
    assert {wanted for _, _, wanted in SUPPORTED.values()} == asked
    assert setup["options"]["python_requires"] == ">=3.10"
    assert JAVA == MINIMUM_VERSION
    assert numbers_of("4.1.0.dev1") == (4, 1, 0)
    assert numbers_of("unknown") == ()


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_a_part_that_is_not_compiled(name: str) -> None:
    facts = replace(DRIVER, **{name: False})
    assert [f.subject for f in of_driver(facts).values() if f.level is not Level.OK] == [
        f"compiled {name}"
    ]
    assert "a C compiler" in of_driver(facts)[f"compiled {name}"].advice
    assert f"records are {name[:-1]}d in Python" in of_driver(facts)[f"compiled {name}"].found
    in_checkout = replace(facts, package_file=f"/home/me/checkout/{NAME}/__init__.py")
    found = of_driver(in_checkout, folder="/home/me/checkout")[f"compiled {name}"]
    assert found.level is Level.WARN
    assert "run from another folder" in found.advice
    choices = [("python" if each == name else "") for each in ("decoder", "encoder")]
    of_choice = {f.subject: f for f in judge_driver(DRIVER, "/elsewhere", *choices)}
    assert [f.subject for f in of_choice.values() if f.level is Level.WARN] == [f"compiled {name}"]
    found = of_choice[f"compiled {name}"]
    assert f"switched off by PYSPARK_KAFKA_REBALANCE_{name.upper()}" in found.found
    assert "unset" in found.advice


def judged(facts: PythonFacts, variable: str = "", role: str = "load() and tasks") -> Any:
    return judge_spark_python(facts, DRIVER, variable, role)


def test_the_driver_s_python_for_spark() -> None:
    assert judged(DRIVER, "PYSPARK_PYTHON").level is Level.OK


def test_a_virtual_environment_that_spark_does_not_know_of() -> None:
    """``venv/bin/python job.py``: Spark starts another Python, in which nothing is installed."""
    found = judged(without(OTHER, NAME))
    assert found.level is Level.FAIL
    assert (
        "PYSPARK_PYTHON is not set, so Spark starts python3, /usr/bin/python3 has no" in found.found
    )
    assert "DATA_SOURCE_NOT_FOUND" in found.found
    assert found.advice == "export PYSPARK_PYTHON=/venv/bin/python"
    assert "tasks fail" in judged(without(OTHER, NAME), role="tasks").found


@pytest.mark.parametrize(
    ("facts", "level", "said"),
    [
        (PythonFacts("jupyter", errors={"start": "no such"}), Level.FAIL, "does not run (no such)"),
        (replace(OTHER, version=(3, 12, 1)), Level.FAIL, "same minor version"),
        (replace(OTHER, version=(3, 11, 9)), Level.OK, "/usr/bin/python3"),
        (without(OTHER, "kafka", "not there"), Level.FAIL, "kafka-python cannot be imported"),
        (without(OTHER, "pyarrow", "not there"), Level.FAIL, "pyarrow cannot be imported"),
        (replace(OTHER, decoder=False), Level.WARN, "lacks the compiled decoder"),
        (replace(OTHER, encoder=False), Level.WARN, "lacks the compiled encoder"),
        (replace(OTHER, versions={**OTHER.versions, NAME: "0.0.1"}), Level.WARN, "release 0.0.1"),
    ],
)
def test_another_python_for_spark(facts: PythonFacts, level: Level, said: str) -> None:
    found = judged(facts, "PYSPARK_PYTHON")
    assert found.level is level
    assert said in found.found


def test_discovery() -> None:
    assert judge_discovery(DRIVER).level is Level.OK
    editable = replace(DRIVER, listed=frozenset(), sources=frozenset())
    assert "editable_mode=compat" in judge_discovery(editable).advice
    unusable = replace(DRIVER, sources=frozenset(), errors={"source": "ImportError: pyarrow"})
    assert "cannot be used: ImportError: pyarrow" in judge_discovery(unusable).found
    hidden = replace(
        DRIVER, listed=DRIVER.listed | {"pyspark_broken"}, errors={"pyspark_broken": "SyntaxError"}
    )
    found = judge_discovery(hidden)
    assert found.level is Level.FAIL
    assert found.found.startswith("pyspark_broken (SyntaxError)")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (JavaFacts("", "", None, False), "the PATH has no java"),
        (JavaFacts("/gone", "/gone/bin/java", None, False), "JAVA_HOME=/gone does not run"),
        (JavaFacts("", "/usr/bin/java", 11, False), "Spark 4 needs 17"),
        (JavaFacts("", "/usr/bin/java", 21, False), "jdk.incubator.vector"),
    ],
)
def test_a_java_with_which_spark_does_not_start(facts: JavaFacts, said: str) -> None:
    found = judge_java(facts)
    assert found.level is Level.FAIL
    assert said in found.found
    assert "JAVA_HOME" in found.advice
    assert judge_java(JavaFacts("", "/usr/bin/java", 17, True)).level is Level.OK


def test_settings_worth_having() -> None:
    name = "spark.python.unix.domain.socket.enabled"

    def levels(*arguments: Any) -> list[Level]:
        return [finding.level for finding in judge_settings(*arguments)]

    assert levels("4.3.0", {}, "", False) == [Level.HINT, Level.HINT]
    assert levels("4.3.0", {name: "true"}, "", True) == [Level.OK]
    assert levels("4.3.0", {}, "true", None) == [Level.OK]
    assert levels("4.0.5", {}, "", None) == []  # Spark 4.0 has no such setting


def test_brokers() -> None:
    [refused] = judge_brokers(BrokerFacts("b:9092", error="KafkaTimeoutError: no"))
    assert (refused.level, refused.found) == (Level.FAIL, "b:9092: KafkaTimeoutError: no")
    facts = BrokerFacts(
        "b:9092",
        version=(4, 2),
        has_consumer_protocol=True,
        consumer_protocol_is_on=True,
        reachable=("b:9092",),
    )
    one, there = judge_brokers(facts)
    assert (one.found, there.level) == ("b:9092 answers for 1 broker, Kafka 4.2", Level.OK)
    newest, off, _ = judge_brokers(
        replace(facts, version=(4, 3), may_be_newer=True, consumer_protocol_is_on=False)
    )
    assert newest.found == "b:9092 answers for 1 broker, Kafka 4.3 or newer"
    assert (off.level, "group.version is 0" in off.found) == (Level.HINT, True)
    assert "--feature group.version=1" in off.advice
    facts = BrokerFacts(
        "b:9092", version=(3, 6), reachable=("b:9092",), unreachable={"c:9092": "timed out"}
    )
    old, listeners = judge_brokers(facts)
    assert old.found == "b:9092 answers for 2 brokers, Kafka 3.6 without KIP-848's group protocol"
    assert listeners.level is Level.FAIL
    assert "c:9092 (timed out)" in listeners.found
    assert "advertised.listeners" in listeners.advice


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (judge_topic(TopicFacts("t", partitions=3, may_read=True)), Level.OK),
        (judge_topic(TopicFacts("t", partitions=1)), Level.OK),
        (judge_topic(TopicFacts("t", partitions=1, may_read=False)), Level.FAIL),
        (judge_topic(TopicFacts("t", error="UnknownTopicOrPartitionError")), Level.FAIL),
        (judge_topic(TopicFacts("t", error="TopicAuthorizationFailedError")), Level.FAIL),
        (judge_topic(TopicFacts("t", error="InvalidTopicError")), Level.FAIL),
        (judge_group(GroupFacts("g", state="Stable", members=2, may_read=True)), Level.OK),
        (judge_group(GroupFacts("g", state="Dead")), Level.OK),
        (judge_group(GroupFacts("g", state="Empty", may_read=False)), Level.FAIL),
        (judge_group(GroupFacts("g", of_consumers=False)), Level.FAIL),
        (judge_group(GroupFacts("g", error="GroupAuthorizationFailedError: g")), Level.FAIL),
    ],
)
def test_topics_and_groups(finding: Any, level: Level) -> None:
    assert finding.level is level
    assert bool(finding.advice) == (level is Level.FAIL)


class FakeAdmin:
    """Answers as an administration client does; the first groups are asked for too early."""

    def __init__(self) -> None:
        self.asked = 0

    def describe_groups(self, group_ids: list[str]) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise CoordinatorNotAvailableError()
        described = {"group_state": "Dead", "members": [], "error": "GroupIdNotFoundError"}
        return {name: {**described, "authorized_operations": None} for name in group_ids}


def test_a_listener_that_nobody_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_probe, "_connect", lambda address: "refused")
    kafka = SimpleNamespace(node_id=1, host="kafka", port=9092)
    monkeypatch.setattr(broker_probe, "known_brokers", lambda admin: [kafka])
    facts = BrokerProbe("127.0.0.1:9092", FakeAdmin()).brokers()
    assert facts == BrokerFacts("127.0.0.1:9092", unreachable={"kafka:9092": "refused"})


def test_no_broker_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def silence(admin: Any) -> Any:
        raise KafkaTimeoutError("no broker")

    monkeypatch.setattr(broker_probe, "known_brokers", silence)
    assert "no broker" in BrokerProbe("127.0.0.1:9092", FakeAdmin()).brokers().error


def test_the_coordinator_of_a_cluster_s_first_group_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = GroupDescription("Dead")
    monkeypatch.setattr(broker_probe, "describe_group", lambda admin, group_id: dead)
    admin = FakeAdmin()
    assert BrokerProbe("b:9092", admin).group("g") == GroupFacts("g", state="Dead")
    assert admin.asked == 2


def test_a_group_of_kafka_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe_groups(group_ids: list[str]) -> Any:
        raise ValueError("Buffer underrun decoding string")

    admin = FakeAdmin()
    monkeypatch.setattr(admin, "describe_groups", describe_groups)
    assert BrokerProbe("b:9092", admin).group("g") == GroupFacts("g", of_consumers=False)


def test_which_python_spark_starts() -> None:
    assert python_of_workers({}) == python_of_planner({}) == ("", "python3")
    named = {"PYSPARK_PYTHON": "/v/python"}
    assert python_of_workers(named) == python_of_planner(named) == ("PYSPARK_PYTHON", "/v/python")
    both = {**named, "PYSPARK_DRIVER_PYTHON": "ipython"}
    assert python_of_planner(both) == ("PYSPARK_DRIVER_PYTHON", "ipython")
    assert python_of_workers(both) == ("PYSPARK_PYTHON", "/v/python")


def test_spark_s_home_and_defaults(tmp_path: Path) -> None:
    pyspark = tmp_path / "pyspark"
    (pyspark / "python" / "lib").mkdir(parents=True)
    (pyspark / "python" / "lib" / "pyspark.zip").touch()
    assert spark_home({}, str(pyspark / "__init__.py")) is None  # Connect's client has no jars
    (pyspark / "jars").mkdir()
    assert spark_home({}, str(pyspark / "__init__.py")) == pyspark
    assert spark_home({"SPARK_HOME": "/spark"}, str(pyspark / "__init__.py")) == Path("/spark")
    assert python_paths(pyspark) == [pyspark / "python" / "lib" / "pyspark.zip"]
    assert read_defaults({}, pyspark) == {}
    (pyspark / "conf").mkdir()
    (pyspark / "conf" / "spark-defaults.conf").write_text(
        "# no\nspark.a  true\n\nspark.b\t1 2\nc\n"
    )
    assert read_defaults({}, pyspark) == {"spark.a": "true", "spark.b": "1 2"}
    assert read_defaults({"SPARK_CONF_DIR": str(pyspark / "conf")}, None)["spark.a"] == "true"


def test_a_program_that_is_no_python() -> None:
    assert ask_python("no-such-python").errors == {"start": "there is no such program"}
    assert "exit code" in ask_python("false").errors["start"]


def test_what_an_old_python_answers() -> None:
    answer = {"executable": "p", "prefix": "/", "version": [3, 8, 0], "versions": {}, "errors": {}}
    facts = parse_answer("python3", json.dumps(answer))
    assert facts == PythonFacts("python3", executable="p", prefix="/", version=(3, 8, 0))


def test_a_finding_has_one_line() -> None:
    assert str(fail("Java", "two\nlines", "mend it")) == "fail  Java: two lines -> mend it"
    assert str(ok("Java", "17")) == "ok    Java: 17"
    assert total([Level.OK, Level.FAIL, Level.WARN]) == "1 failed, 1 warning"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", NAME, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_the_doctor_of_a_job_whose_python_spark_does_not_know(tmp_path: Path) -> None:
    done = run("doctor", PYSPARK_PYTHON=str(tmp_path / "gone"), PYSPARK_DRIVER_PYTHON="")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    Python: ")
    [failed] = [line for line in lines if line.startswith("fail  Python for ")]
    assert failed.endswith(f"-> export PYSPARK_PYTHON={sys.executable}")
    assert lines[-1].endswith("warnings") or lines[-1].endswith("warning")


@pytest.mark.parametrize("command", [(), ("doctor",)])
def test_an_output_that_is_no_longer_read(command: tuple[str, ...]) -> None:
    """As with "| head"."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", NAME, *command],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    assert f"pyspark-kafka-rebalance {__version__} in " in printed
    assert all(name in printed for name in COMMANDS)
    for name in COMMANDS:
        module = f"{NAME}.{name.split()[0]}"
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        if spec.submodule_search_locations:
            assert name == "doctor" or importlib.util.find_spec(f"{module}.__main__"), module


def test_wrong_settings_of_the_brokers_are_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "local_findings", lambda: ())
    config = tmp_path / "client.properties"
    config.write_text("security.protocl=SSL\n")
    where = ["--bootstrap-servers", "127.0.0.1:9092", "--command-config", str(config)]
    assert command.main(["doctor", *where]) == 1
    assert "the nearest is kafka.security.protocol" in capsys.readouterr().out


def test_what_is_asked_of_the_brokers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("retries=3\nbootstrap.controllers=h:1\nsecurity.protocol=SSL\n")

    @contextmanager
    def connected(servers: str, client_config: Any) -> Any:
        assert client_config["bootstrap_servers"] == ["127.0.0.1:9092"]
        assert client_config["security_protocol"] == "SSL"
        yield BrokerFacts(servers, error="AuthenticationError: no")

    monkeypatch.setattr(command, "local_findings", lambda: [ok("Python", "3.11")])
    monkeypatch.setattr(broker_probe, "connected", connected)
    where = ["--bootstrap-servers", "127.0.0.1:9092", "--command-config", str(config)]
    assert command.main(["doctor", *where, "--topic", "t"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5].strip() for line in lines] == ["ok", "fail", "1 fai"]
    assert "AuthenticationError" in lines[1], "settings of administration clients are no mistake"


@pytest.mark.parametrize(
    "option",
    [
        ["--topic", "t"],
        ["--group", "g"],
        ["--command-config", "f"],
        ["--bootstrap-servers", "h:1", "--topic", "\udcff"],
        ["--bootstrap-servers", "h:1", "--group", "\udcff"],
    ],
)
def test_options_that_need_brokers_or_another_value(option: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["doctor", *option])
    assert ended.value.code == 2
