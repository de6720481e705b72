"""The rooms of docs/architecture.md: who may import whom, and where kafka-python's insides are."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from configparser import ConfigParser
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from kafka import KafkaConsumer

import pyspark_kafka_rebalance
from pyspark_kafka_rebalance import DeferredRevokeConsumer

NAME = "pyspark_kafka_rebalance"
PACKAGE = Path(inspect.getfile(pyspark_kafka_rebalance)).parent
ROOT = PACKAGE.parent

#: From the ground up: a room imports from those before it alone.
ROOMS = [
    "errors",
    "transport",
    "settings",
    "fetch",
    "produce",
    "consumer",
    "producer",
    "source",
    "sink",
    "metrics",
    "status",
    "transactions",
    "testing",
    "doctor",
    "__main__",
]

#: Beside the package, in a checkout alone: what each imports of the others.
BESIDE: dict[str, set[str]] = {
    "measuring": set(),
    "demos": {"measuring"},
    "benchmarks": {"measuring"},
}
#: Of what lies in the checkout alone, what keeps the package's rules otherwise.
BESIDE_AND_CHECKED = [
    ROOT / folder
    for folder in (
        *("demos", "measuring", "tests/verifiable_consumer"),
        "tests/transactional_message_copier",
    )
]

#: In ``source/``, what lies below each of its own rooms: they import nothing else of it.
SHARED = {"cluster_query", "driver_sources", "offsets", "options", "spark"}
SOURCE_ROOMS = {
    "offsets": set(),
    "checkpoint": {"offsets"},
    "options": {"checkpoint", "offsets"},
    "spark": {"options"},
    "plan": SHARED,
    "door": {"offsets"},
    "group": SHARED | {"checkpoint", "door", "plan"},
}

#: In ``consumer/``, from the ground up: its rooms, and the modules beside them.
CONSUMER_ROOMS = [
    "messages",
    "offsets",
    "fetch_metadata",
    "poll_result",
    "observer",
    "pump",
    "configuration",
    "catch_up",
    "arrow_records",
    "member_record",
    "taken",
    "kafka_python",
    "group_description",
    "cluster_queries",
    "protocol",
    "commits",
    "membership",
    "progress",
    "gaps_beside_live",
    "reading",
    "polls",
    "consumer",
    "ordered",
    "aio",
]

#: In ``source/group/``, from the ground up.
GROUP_ROOMS = [
    "batches",
    "owned",
    "query_state",
    "clients",
    "logs",
    "others",
    "starts",
    "batch_state",
    "batch_proofs",
    "catch_up",
    "group_commits",
    "sink_batches",
    "membership",
]

#: In ``testing/``, from the ground up.
TESTING_ROOMS = [
    "errors",
    "java",
    "kafka_versions",
    "kafka_jars",
    "spark_java",
    "processes",
    "brokers",
    "local_kafka",
    "secured_kafka",
    "postgres_server",
    "local_postgres",
    "environment",
    "pytest_fixtures",
    "local_spark",
    "local_spark_cluster",
    "child_process",
    "ledger",
    "query_process",
]

#: As many imports as a picture of the rooms of ``consumer/`` can show (it has 71).
MOST_IMPORTS = 80
MOST_FILES = 16
#: Rooms that were made before that limit; they may not grow.
FULL_ROOMS: dict[str, int] = {}

#: Where private names of kafka-python are used. What is used is named there to `require_names`.
SEAMS = ["consumer/kafka_python/", "transport/", "fetch/connections.py", "transactions/requests.py"]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path) -> Iterator[str]:
    """The full names of the modules, or of what is in them, that the file imports anywhere."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)


def room_of(name: str) -> str | None:
    """The room that a full name is in; None outside of them."""
    package, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    return room if package == NAME and room in ROOMS else None


def test_every_folder_and_module_of_the_package_is_a_room() -> None:
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_below_it(room: str) -> None:
    module = PACKAGE / f"{room}.py"
    files = [module] if module.exists() else [*(PACKAGE / room).rglob("*.py")]
    below = ROOMS[: ROOMS.index(room) + 1]
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files
        for name in imported_by(path)
        if (into := room_of(name)) is not None and into not in below
    ]
    assert files
    assert upwards == []


@pytest.mark.parametrize("room", SOURCE_ROOMS)
def test_a_room_of_the_source_knows_nothing_of_those_above_it(room: str) -> None:
    allowed = SOURCE_ROOMS[room] | {room}
    paths = [*(PACKAGE / "source" / room).rglob("*.py")]
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in paths
        for name in imported_by(path)
        if name.startswith(f"{NAME}.source.") and name.split(".")[2] not in allowed
    ]
    assert len(paths) > 1
    assert upwards == []


def imports_between(folder: Path) -> set[tuple[str, str]]:
    """Which rooms and modules of the folder import which, themselves left out."""
    inside = module_of(folder / "__init__.py")
    return {
        (
            path.relative_to(folder).parts[0].removesuffix(".py"),
            name[len(inside) + 1 :].split(".")[0],
        )
        for path in folder.rglob("*.py")
        if path.parent != folder or path.name != "__init__.py"
        for name in imported_by(path)
        if name.startswith(f"{inside}.")
    } - {(room, room) for room in (path.stem for path in folder.iterdir())}


@pytest.mark.parametrize(
    ("folder", "rooms"),
    [("consumer", CONSUMER_ROOMS), ("source/group", GROUP_ROOMS), ("testing", TESTING_ROOMS)],
)
def test_a_room_within_a_room_imports_only_from_those_below_it(
    folder: str, rooms: list[str]
) -> None:
    imports = imports_between(PACKAGE / folder)
    paths = [path for path in (PACKAGE / folder).iterdir() if path.is_dir() or path.suffix == ".py"]
    found = {p.stem for p in paths if p.suffix == ".py" or [*p.glob("*.py"), *p.glob("*.json")]}
    assert found - {"__init__"} == set(rooms)
    assert len(imports) > len(rooms)
    assert [(a, b) for a, b in sorted(imports) if rooms.index(a) < rooms.index(b)] == []


def test_the_rooms_of_the_consumer_can_be_drawn() -> None:
    imports = imports_between(PACKAGE / "consumer")
    assert len(imports) <= MOST_IMPORTS, "\n".join(f"{a} imports {b}" for a, b in sorted(imports))


def test_no_room_has_more_files_than_a_reader_looks_through() -> None:
    files = Counter(
        path.parent.relative_to(folder if folder == PACKAGE else ROOT).as_posix()
        for folder in (PACKAGE, *BESIDE_AND_CHECKED)
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {room: n for room, n in files.items() if n > FULL_ROOMS.get(room, MOST_FILES)} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for types alone, either: who reads one would have to read all."""
    folders = (PACKAGE, *BESIDE_AND_CHECKED)
    modules = {module_of(path): path for folder in folders for path in folder.rglob("*.py")}
    imports = {
        module: {n if n in modules else n.rpartition(".")[0] for n in imported_by(path)} - {module}
        for module, path in modules.items()
    }
    for imported in imports.values():
        imported &= modules.keys() - {NAME}  # which has the public names of all
    assert sum(map(len, imports.values())) > len(modules)
    TopologicalSorter(imports).prepare()  # a CycleError names the modules


@pytest.mark.parametrize(
    "room",
    [
        "fetch",
        "produce",
        "source",
        "sink",
        "consumer",
        "producer",
        "metrics",
        "status",
        "transactions",
    ],
)
def test_what_runs_in_production_has_nothing_of_pytest(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        assert "pytest" not in {name.partition(".")[0] for name in imported_by(path)}, path


def test_the_package_is_installed_without_what_lies_beside_it() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options"]["packages"] == "find:"
    patterns = config["options.packages.find"]["include"].split()
    folders = [path.parent.relative_to(ROOT) for path in ROOT.glob("[!.]*/**/__init__.py")]
    names = [".".join(folder.parts) for folder in folders if folder.parts[0] != "build"]
    assert "demos.rebalance" in names
    installed = [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
    assert f"{NAME}.source.group" in installed
    assert {name.partition(".")[0] for name in installed} == {NAME}
    names = {part for path in PACKAGE.rglob("*.py") for part in path.relative_to(PACKAGE).parts}
    assert names.isdisjoint(
        {"demo", "demos", "measuring", "rebalances", "shop", "verifiable_consumer.py"}
    )


def test_the_package_imports_nothing_that_lies_beside_it() -> None:
    """Also by a name that a process is started by."""
    outside = {*BESIDE, "tests", "examples"}
    paths = [*PACKAGE.rglob("*.py")]
    assert [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in paths
        for name in imported_by(path)
        if name.partition(".")[0] in outside
    ] == []
    started = re.compile(rf'"(?:{"|".join(outside)})\.\w')
    assert [path.name for path in paths if started.search(path.read_text())] == []


@pytest.mark.parametrize("folder", BESIDE)
def test_what_lies_beside_the_package_is_apart(folder: str) -> None:
    """Also as a name that a process is started by; what the others share is in ``measuring/``."""
    files = [*(ROOT / folder).rglob("*.py")]
    others = {*BESIDE, "tests", "examples"} - BESIDE[folder] - {folder}
    assert files
    started = re.compile(rf'"(?:{"|".join(others)})\.\w')
    assert [path.name for path in files if started.search(path.read_text())] == []
    assert [
        f"{path.name} imports {name}"
        for path in files
        for name in imported_by(path)
        if name.partition(".")[0] in others
    ] == []


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Each private attribute that the file reads or sets, and whether it is one of ``self``'s."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and private(node.attr):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield node.attr, of_self


def defined_in(path: Path) -> Iterator[str]:
    """Names that the file gives to functions, class attributes, and attributes of ``self``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
        ):
            yield node.attr


def outside_the_seams() -> list[Path]:
    return [
        path
        for folder in (PACKAGE, *BESIDE_AND_CHECKED)
        for path in folder.rglob("*.py")
        if folder != PACKAGE or not path.relative_to(PACKAGE).as_posix().startswith(tuple(SEAMS))
    ]


def test_private_names_of_others_are_used_in_the_seams_alone() -> None:
    paths = outside_the_seams()
    ours = {name for path in paths for name in defined_in(path)}
    ours |= {"_make", "_replace", "_asdict", "_fields"}  # a NamedTuple's, which are public
    ours |= {"_exit"}  # os._exit is documented
    foreign = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name, of_self in private_names_of(path)
        if not of_self and name not in ours
    ]
    assert foreign == []


def test_the_consumer_leaves_private_names_of_the_one_that_it_extends_to_the_seams() -> None:
    theirs = {
        name for name in [*vars(KafkaConsumer), *defined_in(Path(inspect.getfile(KafkaConsumer)))]
        if private(name)
    }  # fmt: skip
    assert "_coordinator" in theirs
    files = {
        Path(inspect.getfile(each))
        for each in DeferredRevokeConsumer.__mro__
        if each.__module__.startswith(NAME)
    }
    assert files == {PACKAGE / "consumer" / "consumer.py"}
    used = [
        f"{path.name}: self.{name}"
        for path in files
        for name, of_self in private_names_of(path)
        if of_self and name in theirs
    ]
    assert used == []


def test_every_module_that_the_architecture_names_is_there() -> None:
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    (table,) = re.findall(r"\| you look for .*?\n\n", text, re.DOTALL)
    named = re.findall(r"`([a-z_]+/[a-z_/]*[a-z_]+\.(?:py|c))`", table)
    assert len(named) > 20
    roots = {name: ROOT if name.split("/")[0] in BESIDE else PACKAGE for name in named}
    assert [name for name, root in roots.items() if not (root / name).exists()] == []


def test_tests_that_are_in_no_package_have_names_of_their_own() -> None:
    """Pytest imports them by these: of two with one name, the second is not run."""
    tests = PACKAGE.parent / "tests"
    names = [file.name for folder in ("unit", "kafka") for file in (tests / folder).glob("*.py")]
    assert len(names) > 100
    assert {name for name in names if names.count(name) > 1} <= {"conftest.py"}
