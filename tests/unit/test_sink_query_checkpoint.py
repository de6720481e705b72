"""What the sink reads of a query's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.sink.once.query_checkpoint import (
    QueryCheckpoint,
    batch_input,
    checkpoint_of,
)
from pyspark_kafka_rebalance.source.offsets.offset_json import offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import StreamOffset

OURS = json.dumps(offset_to_json(StreamOffset(run="kafka_deferred-1a2b")))
FILES = '{"logOffset":4}'


def log_of(*sources: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *sources])


def test_sources_of_this_package_are_known_by_their_offsets() -> None:
    found = batch_input(3, log_of(OURS, FILES))
    assert [source.run for source in found.group_sources] == ["kafka_deferred-1a2b"]
    assert found.has_others
    assert not batch_input(3, log_of(OURS)).has_others
    assert not batch_input(3, log_of(OURS, "-")).has_others  # it has no offset yet


@pytest.mark.parametrize("other", [FILES, "17", '{"t":{"0":5}}', "not JSON at all"])
def test_other_sources_are_whatever_else_has_an_offset(other: str) -> None:
    found = batch_input(0, log_of(other))
    assert found.has_others
    assert found.group_sources == ()


def test_the_digest_is_of_the_sources_ends_alone() -> None:
    one = batch_input(0, log_of("5"))
    assert batch_input(0, log_of("5").replace("Ms", "")).digest == one.digest
    assert batch_input(0, log_of("6")).digest != one.digest
    assert batch_input(0, log_of("a")).digest != batch_input(0, log_of("b")).digest


def test_named_sources(tmp_path: Path) -> None:
    found = batch_input(0, f"v2\n{{}}\nx:{OURS}\ny:{FILES}")
    assert len(found.group_sources) == 1
    assert found.has_others


def test_a_source_that_is_where_it_was_has_nothing_in_the_batch() -> None:
    further = OURS.replace("1a2b", "3c4d")
    found = batch_input(3, log_of(further, OURS, FILES), log_of(OURS, OURS, FILES))
    assert [source.run for source in found.group_sources] == ["kafka_deferred-3c4d"]
    assert not found.has_others
    assert batch_input(3, log_of(OURS, "5"), log_of(OURS, FILES)).has_others
    assert batch_input(3, log_of(OURS, "5"), log_of(OURS, FILES)).group_sources == ()
    assert len(batch_input(3, log_of(OURS, OURS), log_of(OURS)).group_sources) == 1  # a new one


def test_named_sources_that_are_where_they_were() -> None:
    before = f"v2\n{{}}\nx:{OURS}\ny:{FILES}"
    found = batch_input(3, f"v2\n{{}}\ny:5\nx:{OURS}", before)
    assert found.group_sources == ()
    assert found.has_others


def query_at(folder: Path, query: str) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return folder


def test_what_a_batch_has_is_compared_with_the_batch_before(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(query_at(tmp_path, "q")))
    for batch in (6, 7):
        (tmp_path / f"offsets/{batch}").write_text(log_of(OURS))
    assert len(checkpoint.input_of(6).group_sources) == 1
    assert checkpoint.input_of(7).group_sources == ()


def test_a_batch_that_is_not_logged_is_refused(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(query_at(tmp_path, "q")))
    with pytest.raises(KafkaRebalanceError, match="batch 7 is not in the offset log"):
        checkpoint.input_of(7)


def test_a_version_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (query_at(tmp_path, "q") / "offsets/0").write_text("v9\n{}\n5")
    with pytest.raises(KafkaRebalanceError, match=r"offsets/0 .* cannot be read.*v9"):
        QueryCheckpoint(str(tmp_path)).input_of(0)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KafkaRebalanceError, match="no query's checkpoint"):
        QueryCheckpoint(str(tmp_path))


def test_the_checkpoint_is_found_in_the_sessions_folder_by_the_querys_id(tmp_path: Path) -> None:
    query_at(tmp_path / "one", "q1")
    query_at(tmp_path / "two", "q2")
    (tmp_path / "a file").write_text("")
    (tmp_path / "a folder").mkdir()
    assert checkpoint_of(None, [None, str(tmp_path)], "q2") == str(tmp_path / "two")
    assert checkpoint_of("/option", [str(tmp_path)], "q2") == "/option"
    with pytest.raises(KafkaRebalanceError, match="query q3 is not known"):
        checkpoint_of(None, [str(tmp_path)], "q3")


def test_a_query_with_state_has_a_folder_of_it(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(query_at(tmp_path, "q")))
    assert not checkpoint.is_stateful
    (tmp_path / "state/0").mkdir(parents=True)
    assert checkpoint.is_stateful


def test_the_owners_are_noted_and_the_oldest_forgotten(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(query_at(tmp_path, "q")))
    assert checkpoint.owners == ()
    for number in range(101):
        checkpoint.note_owner(f"run-{number}")
    assert QueryCheckpoint(str(tmp_path)).owners == tuple(f"run-{n}" for n in range(1, 101))
