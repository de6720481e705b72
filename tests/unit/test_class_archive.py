"""An archive of classes is made once, for one Java and its jars, and its lack is no error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.testing.java import Java
from pyspark_kafka_rebalance.testing.processes.class_archive import class_archive, is_decided

JAVA = Java(Path("/opt/java/bin/java"), 17, Path("/opt/java"), "17.0.1+1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPARK_KAFKA_REBALANCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "a.jar"
    path.write_bytes(b"classes")
    return path


class Making:
    """Counts, and writes what it is to write."""

    def __init__(self, content: bytes | None = b"archive", takes_s: float = 0.0) -> None:
        self.runs = 0
        self._content = content
        self._takes_s = takes_s
        self._lock = threading.Lock()

    def __call__(self, archive: Path) -> None:
        with self._lock:
            self.runs += 1
        time.sleep(self._takes_s)
        if self._content is None:
            raise RuntimeError("no such option")
        archive.write_bytes(self._content)


@pytest.mark.usefixtures("cache")
def test_an_archive_is_made_once(jar: Path) -> None:
    make = Making()
    first = class_archive("kafka", JAVA, [jar], make)
    assert first is not None
    assert first.read_bytes() == b"archive"
    assert class_archive("kafka", JAVA, [jar], make) == first
    assert make.runs == 1


@pytest.mark.usefixtures("cache")
def test_without_a_way_to_make_it_one_that_is_there_is_used(jar: Path) -> None:
    assert class_archive("spark", JAVA, [jar], None) is None
    made = class_archive("spark", JAVA, [jar], Making())
    assert made is not None
    assert class_archive("spark", JAVA, [jar], None) == made


@pytest.mark.usefixtures("cache")
def test_of_those_that_want_it_at_once_one_makes_it(jar: Path) -> None:
    make = Making(takes_s=0.1)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: class_archive("kafka", JAVA, [jar], make), range(4)))
    assert len(found) == 1
    assert None not in found
    assert make.runs == 1


@pytest.mark.usefixtures("cache")
def test_another_java_or_jar_has_another_archive(jar: Path) -> None:
    make = Making()
    mine = class_archive("kafka", JAVA, [jar], make)
    updated = JAVA._replace(build="17.0.2+8")
    others = [class_archive("kafka", updated, [jar], make)]
    jar.write_bytes(b"other classes")
    others.append(class_archive("kafka", JAVA, [jar], make))
    assert len({mine, *others}) == 3


@pytest.mark.usefixtures("cache")
def test_a_java_that_makes_none_is_not_asked_again(
    jar: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = Making(content=None)
    assert class_archive("kafka", JAVA, [jar], make) is None
    assert "no such option" in caplog.text
    assert class_archive("kafka", JAVA, [jar], make) is None
    assert make.runs == 1


def test_a_run_that_is_interrupted_leaves_nothing_and_the_next_one_makes_it(
    cache: Path, jar: Path
) -> None:
    def interrupted(archive: Path) -> None:
        archive.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        class_archive("kafka", JAVA, [jar], interrupted)
    assert list((cache / "class-archives").glob("*.jsa")) == []
    assert class_archive("kafka", JAVA, [jar], Making()) is not None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path, jar: Path) -> None:
    cache.write_text("a file in the folder's place")
    make = Making()
    assert class_archive("kafka", JAVA, [jar], make) is None
    assert make.runs == 0


@pytest.mark.parametrize(
    "option", ["-Xshare:off", "-XX:SharedArchiveFile=/a", "-XX:ArchiveClassesAtExit=/a"]
)
def test_the_users_own_choice_is_seen(option: str) -> None:
    assert is_decided(["-Xmx1g", option])
    assert not is_decided(["-Xmx1g"])
