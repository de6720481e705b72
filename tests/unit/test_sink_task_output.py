"""A task's output: in the order of the tasks, in a message or a file, whole or an error."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark_kafka_rebalance import KafkaRebalanceError
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch
from pyspark_kafka_rebalance.sink.collected_batches import (
    MOST_INLINE_BYTES,
    CollectedBatches,
)
from pyspark_kafka_rebalance.sink.spill.spill_folder import (
    remove_batch,
    remove_other_runs,
    spill_file_of,
)
from pyspark_kafka_rebalance.sink.spill.spill_format import (
    SpillFormatError,
    end_frame,
    frame_of,
    read_frames,
)
from pyspark_kafka_rebalance.sink.task_context import TaskIdentity
from pyspark_kafka_rebalance.sink.task_output import output_size, read_output


def batch_of(partition: int, data: bytes, records: int = 1) -> EncodedBatch:
    return EncodedBatch(partition, memoryview(bytearray(data)), records, len(data))


BATCHES = st.lists(
    st.tuples(
        st.text("äbc", min_size=1, max_size=3),
        st.builds(batch_of, st.integers(0, 9), st.binary(max_size=50), st.integers(1, 9)),
    ),
    max_size=5,
)


def file_of(batches: list[tuple[str, EncodedBatch]]) -> bytes:
    framed = [frame_of(topic, batch) + batch.data.tobytes() for topic, batch in batches]
    return b"".join(framed) + end_frame(len(batches))


@given(BATCHES)
def test_a_file_has_what_was_written(batches: list[tuple[str, EncodedBatch]]) -> None:
    read = list(read_frames(io.BytesIO(file_of(batches)).read))
    assert read == batches
    assert all(not batch.data.readonly for _, batch in read)  # a sender writes into them


@given(BATCHES, st.integers(min_value=1, max_value=200))
def test_a_file_that_was_cut_short_is_an_error(
    batches: list[tuple[str, EncodedBatch]], missing: int
) -> None:
    whole = file_of(batches)
    with pytest.raises(SpillFormatError):
        list(read_frames(io.BytesIO(whole[: max(len(whole) - missing, 0)]).read))


def test_a_small_output_travels_in_the_message_and_a_large_one_in_a_file(tmp_path: Path) -> None:
    task = TaskIdentity(1, 11, "query", "run", "5")
    file = spill_file_of(task, str(tmp_path), "write")
    small = CollectedBatches(file)
    small.add("t", [batch_of(0, b"x")])
    assert small.output(task).spilled is None
    collected = CollectedBatches(file)
    half = bytes(MOST_INLINE_BYTES // 2)
    collected.add("t", [batch_of(0, half), batch_of(1, half)])
    collected.add("u", [batch_of(2, b"last")])
    first = CollectedBatches(None)
    first.add("t", [batch_of(0, b"first task")])
    messages = [collected.output(task), None, first.output(TaskIdentity(0, 10))]
    messages = pickle.loads(pickle.dumps(messages))
    assert len(pickle.dumps(messages)) < 10_000
    read = [(topic, batch.data.tobytes()) for topic, batch in read_output(messages)]
    assert read == [("t", b"first task"), ("t", half), ("t", half), ("u", b"last")]
    assert output_size(messages) == sum(len(data) for _, data in read)


def test_a_failed_attempt_leaves_no_file(tmp_path: Path) -> None:
    collected = CollectedBatches(spill_file_of(TaskIdentity(), str(tmp_path), "write"))
    collected.add("t", [batch_of(0, bytes(MOST_INLINE_BYTES + 1))])
    assert [path for path in tmp_path.rglob("*") if path.is_file()]
    collected.drop()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_that_is_gone_names_the_machine_and_the_reason(tmp_path: Path) -> None:
    task = TaskIdentity(0, 3, "query", "run", "5")
    collected = CollectedBatches(spill_file_of(task, str(tmp_path), "write"))
    collected.add("t", [batch_of(0, bytes(MOST_INLINE_BYTES + 1))])
    output = collected.output(task)
    assert output.spilled is not None
    output.spilled.remove()
    with pytest.raises(KafkaRebalanceError, match="share the checkpoint's folder"):
        list(read_output([output]))


def test_the_files_of_a_write_are_removed_and_those_of_other_runs_after_a_commit(
    tmp_path: Path,
) -> None:
    def written(query: str, run: str, write: str, attempt: int) -> Path:
        file = spill_file_of(TaskIdentity(0, attempt, query, run, "5"), str(tmp_path), write)
        assert file is not None
        writer = file.writer()
        writer.close()
        files.append(file)
        return tmp_path / file.path

    files: list = []
    lost_attempt = written("q-files", "now", "w", 1)
    mine = written("q-files", "now", "w", 2)
    same_batch = written("q-files", "now", "other", 3)
    killed_run = written("q-files", "before", "w", 4)
    other_query = written("q-other", "before", "w", 5)
    remove_batch([files[1]])
    assert [path.exists() for path in (lost_attempt, mine)] == [False, False]
    assert same_batch.exists()
    assert killed_run.exists()
    remove_other_runs([files[1]])
    assert not killed_run.exists()
    assert same_batch.exists()
    assert other_query.exists()


def test_without_a_place_for_files_output_stays_in_memory() -> None:
    assert spill_file_of(TaskIdentity(), None, "write") is None
    assert spill_file_of(TaskIdentity(is_local=True), None, "write") is not None
    named = spill_file_of(TaskIdentity(session_checkpoint="file:/tmp/x"), None, "write")
    assert named is not None
    assert named.root == "/tmp/x"
