"""What importing the package may bring along, and what it must do without."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(code: str) -> str:
    """Run the code in a fresh interpreter; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORBID_PYSPARK = """
import sys
from importlib.abc import MetaPathFinder

class Forbid(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Forbid())
"""


@pytest.mark.parametrize(
    "room", ["consumer", "fetch", "metrics", "produce", "status", "testing", "transactions"]
)
def test_every_module_of_the_room_imports_without_pyspark(room: str) -> None:
    imported = run(
        FORBID_PYSPARK
        + f"""
import importlib, pkgutil
room = importlib.import_module("pyspark_kafka_rebalance.{room}")
for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
    importlib.import_module(module.name)
    print(module.name)
"""
    )
    assert imported.split(), "the room is empty"


def test_the_top_level_imports_nothing_heavy() -> None:
    run(
        """
        import sys
        import pyspark_kafka_rebalance
        assert pyspark_kafka_rebalance.__version__
        dir(pyspark_kafka_rebalance)
        heavy = {name.partition(".")[0] for name in sys.modules} & {"kafka", "pyarrow", "pyspark"}
        assert not heavy, heavy
        """
    )


def test_a_query_is_made_without_kafka_python_arrow_and_what_only_the_planner_needs() -> None:
    """Spark starts a process for the schema alone, and one for the plan: a second of each start."""
    run(
        """
        import pickle, sys
        from pyspark_kafka_rebalance import DefaultSource
        options = {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "subscribe": "t"}
        source = DefaultSource(options)
        assert source.schema()
        reader = pickle.loads(pickle.dumps(source)).streamReader(source.schema())
        assert pickle.loads(pickle.dumps(reader))
        package = "pyspark_kafka_rebalance"
        unneeded = {"kafka", "pyarrow", f"{package}.source.stream", f"{package}.consumer.deferred"}
        assert not unneeded & sys.modules.keys(), unneeded & sys.modules.keys()
        """
    )


@pytest.mark.parametrize("call", ["enable", "disable"])
def test_loading_the_planner_leaves_garbage_collection_as_it_was(call: str) -> None:
    run(
        f"""
        import gc
        from pyspark_kafka_rebalance import DefaultSource
        options = {{"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "subscribe": "t"}}
        source = DefaultSource(options)
        gc.{call}()
        assert source.streamReader(source.schema()).initialOffset()
        assert gc.isenabled() == ({call!r} == "enable")
        """
    )


def test_without_pyspark_there_is_no_default_source_and_no_other_error() -> None:
    run(
        FORBID_PYSPARK
        + """
import pyspark_kafka_rebalance
try:
    pyspark_kafka_rebalance.DefaultSource
except AttributeError as error:
    assert "spark" in str(error), error
else:
    raise AssertionError("a DefaultSource without Spark")
# Spark's own look-up.
assert not hasattr(pyspark_kafka_rebalance, "DefaultSource")
from pyspark_kafka_rebalance import DeferredRevokeConsumer, RangeFetcher
"""
    )


def test_what_needs_pyspark_says_so() -> None:
    run(
        FORBID_PYSPARK
        + """
import pyspark_kafka_rebalance as package
from pyspark_kafka_rebalance import progress, ProducerGroup
said = {}
for name in package._PUBLIC:
    try:
        getattr(package, name)
    except ImportError as error:
        said[name] = str(error)
assert list(said) == ["KafkaDeferredDataSource", "stop_gracefully"], said
assert "stop_gracefully needs PySpark" in said["stop_gracefully"], said
"""
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    import pyspark_kafka_rebalance

    with pytest.raises(AttributeError, match="no attribute 'NoSuchThing'"):
        pyspark_kafka_rebalance.NoSuchThing  # noqa: B018


def test_spark_finds_the_package_from_any_folder(tmp_path: Path) -> None:
    """Spark lists modules to find data sources; an import hook would be passed over."""
    listed = "import pkgutil; print(*(m.name for m in pkgutil.iter_modules()))"
    found = subprocess.run(
        [sys.executable, "-c", listed], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "pyspark_kafka_rebalance" in found.stdout.split()


def test_the_doctor_runs_where_what_it_looks_for_is_missing() -> None:
    run(
        """
        import sys
        from pyspark_kafka_rebalance.doctor.command import main
        assert main([]) == 0
        heavy = {name.partition(".")[0] for name in sys.modules} & {"kafka", "pyarrow", "pyspark"}
        assert not heavy, heavy
        """
    )
