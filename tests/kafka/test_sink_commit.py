"""The commit of a sink's batches on a real broker, of a query without Kafka sources.

The commit runs in a process of its own, as Spark's does, so that it can die at every step.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from producer_groups import read_committed
from written import ENDS_SOON, VERSIONS, producer_of

from pyspark_kafka_rebalance.errors import KafkaRebalanceError, TransactionAbortedError
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.partitioner import partition_of_key
from pyspark_kafka_rebalance.produce.producer import Transaction
from pyspark_kafka_rebalance.sink.once import fenced_writer
from pyspark_kafka_rebalance.sink.once.commit import commit_batch
from pyspark_kafka_rebalance.sink.once.fenced_writer import drop_writer, transactional_id_of
from pyspark_kafka_rebalance.sink.options.sink_options import SinkOptions
from pyspark_kafka_rebalance.sink.task_output import TaskOutput
from pyspark_kafka_rebalance.testing import LocalKafka

QUERY = "8f14e45f-ceea-4e7a-9b1d-0d8b0c5a7a01"


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=ENDS_SOON) as local:
        yield local


class Query:
    """A query's checkpoint, as Spark writes it, and the commits of its batches."""

    def __init__(self, kafka: LocalKafka, topic: str, folder: Path, query: str = QUERY) -> None:
        self.id, self.topic, self.folder = query, topic, folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": query}))
        self._servers = kafka.bootstrap_servers

    def plan(self, batch: int, end: int) -> None:
        (self.folder / f"offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset":{end}}}')

    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._servers,
            "topic": self.topic,
            "checkpointLocation": str(self.folder),
        }

    def commit(self, batch: int, values: list[bytes], run: str = "run-1") -> None:
        commit_batch(SinkOptions.checked(self.options()), [self.output(values, run)], batch)

    def output(self, values: list[bytes], run: str) -> TaskOutput:
        rows = pa.record_batch({"value": values, "partition": [0] * len(values)})
        batches = tuple((self.topic, each) for each in ArrowEncoder(self.topic, 1).encode(rows))
        size = sum(len(each.data) for _, each in batches)
        return TaskOutput(0, self.id, run, None, batches, records=len(values), bytes=size)

    def dies_before(self, step: str, batch: int, values: list[bytes], run: str = "run-1") -> None:
        """Commit in a process that is killed just before it calls this method of a transaction."""
        found = subprocess.run(
            [sys.executable, "-c", _DIES],
            input=json.dumps([step, self.options(), self.id, batch, *texts(values), run]),
            text=True,
            timeout=120,
            check=False,
        )
        assert found.returncode == -signal.SIGKILL


_DIES = """
import json, os, signal, sys
sys.path.insert(0, "tests/kafka")
from pathlib import Path
from pyspark_kafka_rebalance.produce.producer import Transaction
from pyspark_kafka_rebalance.sink.once import commit
from pyspark_kafka_rebalance.sink.options.sink_options import SinkOptions
from test_sink_commit import Query

step, options, query, batch, *values, run = json.load(sys.stdin)

def dies(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

real = Transaction.commit
commits = []

def commits_and_dies(self, *args):
    commits.append(self)
    if len(commits) == 1 and step != "claim":  # the claim of a new run
        return real(self, *args)
    if step == "commit":
        self.flush()
        dies()
    real(self, *args)
    dies()

if step == "send_encoded":
    Transaction.send_encoded = dies
else:
    Transaction.commit = commits_and_dies
one = Query.__new__(Query)
one.id, one.topic = query, options["topic"]
output = one.output([value.encode() for value in values], run)
commit.commit_batch(SinkOptions.checked(options), [output], batch)
"""


@pytest.fixture
def query(cluster: LocalKafka, topic_name: str, tmp_path: Path) -> Iterator[Query]:
    cluster.create_topic(topic_name, 1, config={"max.message.bytes": 2_000})
    yield Query(cluster, topic_name, tmp_path / "checkpoint", f"{QUERY}-{topic_name}")
    drop_writer(f"{QUERY}-{topic_name}")


def forget(query: Query) -> None:
    """As if another process committed from now on."""
    drop_writer(query.id)
    fenced_writer._owned.clear()


def texts(of: list[bytes]) -> list[str]:
    return [value.decode() for value in of]


def values(*numbers: int) -> list[bytes]:
    return [b"%d" % n for n in numbers]


def test_a_batch_that_comes_again_is_not_written_again(cluster: LocalKafka, query: Query) -> None:
    query.plan(0, 1)
    query.commit(0, values(1, 2))
    query.commit(0, values(1, 2))
    query.commit(0, values(1, 2), "run-2")  # after a restart
    query.plan(1, 2)
    query.commit(1, values(3), "run-2")
    drop_writer(query.id)  # another process
    query.commit(1, values(3), "run-2")
    query.plan(2, 3)
    query.commit(2, values(4), "run-2")
    assert read_committed(cluster, query.topic) == values(1, 2, 3, 4)


@pytest.mark.parametrize("step", ["send_encoded", "claim", "commit", "after the commit"])
def test_a_process_that_dies_at_any_step(cluster: LocalKafka, query: Query, step: str) -> None:
    query.plan(0, 1)
    query.dies_before(step, 0, values(1, 2))
    query.commit(0, values(1, 2), "run-2")
    query.plan(1, 2)
    query.commit(1, values(3), "run-2")
    assert read_committed(cluster, query.topic) == values(1, 2, 3)


def test_an_older_checkpoint_is_refused_whatever_its_next_batch_has(
    cluster: LocalKafka, query: Query
) -> None:
    for batch in range(3):
        query.plan(batch, batch)
        query.commit(batch, values(batch))
    query.plan(1, 7)  # restored, and cut in another way
    with pytest.raises(KafkaRebalanceError, match="has written up to batch 2"):
        query.commit(1, values(7), "run-2")
    query.plan(2, 7)
    with pytest.raises(KafkaRebalanceError, match="has written another batch of this number"):
        query.commit(2, values(7), "run-2")
    assert read_committed(cluster, query.topic) == values(0, 1, 2)


def test_the_older_of_two_drivers_names_the_newer(
    cluster: LocalKafka, query: Query, tmp_path: Path
) -> None:
    query.plan(0, 1)
    query.commit(0, values(1))
    copy = Query(cluster, query.topic, tmp_path / "copy", query.id)
    copy.plan(1, 2)
    drop_writer(query.id)
    copy.commit(1, values(2), "run-2")
    drop_writer(query.id)
    query.plan(1, 2)
    with pytest.raises(KafkaRebalanceError, match=r"its run run-2 in process \d+ on .* taken over"):
        query.commit(1, values(2))
    forget(query)  # the checkpoint knows, too
    with pytest.raises(KafkaRebalanceError, match=r"its run run-2 in process \d+ on .* taken over"):
        query.commit(1, values(2))
    copy.plan(2, 3)
    copy.commit(2, values(3), "run-2")  # it was not fenced by that
    assert read_committed(cluster, query.topic) == values(1, 2, 3)


def test_two_drivers_on_one_checkpoint_the_older_stays_out(
    cluster: LocalKafka, query: Query
) -> None:
    """It wakes up in another process than before, when the newer one has noted itself."""
    query.plan(0, 1)
    query.commit(0, values(1), "run-1")
    query.plan(1, 2)
    query.commit(1, values(2), "run-2")
    forget(query)
    with pytest.raises(KafkaRebalanceError, match=r"its run run-2 in process \d+ on .* taken over"):
        query.commit(1, values(2), "run-1")
    query.plan(2, 3)
    query.commit(2, values(3), "run-2")
    assert read_committed(cluster, query.topic) == values(1, 2, 3)


def test_a_producer_that_is_fenced_without_a_rival_writes_all_the_same(
    cluster: LocalKafka, query: Query
) -> None:
    """So do a time-out of the coordinator, and an administrator who aborts (iceberg 17376)."""
    query.plan(0, 1)
    query.commit(0, values(1))
    with producer_of(cluster, transactional_id_of(query.id)) as another:
        another.initialize()
    query.plan(1, 2)
    query.commit(1, values(2, 3))
    assert read_committed(cluster, query.topic) == values(1, 2, 3)


@pytest.mark.parametrize("fails", ["by a broker", "at the end"])
def test_an_aborted_batch_is_written_again_whole_even_if_it_was_split(
    cluster: LocalKafka, query: Query, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The second attempt sends the same encoded batches, which the first has stamped and halved."""
    numbers = [b"%0200d" % n for n in range(100)]
    query.plan(0, 1)
    query.commit(0, values(0))
    real = Transaction.commit
    attempts: list[Transaction] = []

    def commit(self: Transaction, *args: float) -> None:
        attempts.append(self)
        if len(attempts) > 1:
            return real(self, *args)
        self.flush()
        if fails == "by a broker":  # it fences the producer
            with producer_of(cluster, transactional_id_of(query.id)) as another:
                another.initialize()
            return real(self, *args)
        self.abort("a member of the group has another generation")
        raise TransactionAbortedError("a member of the group has another generation", {})

    monkeypatch.setattr(Transaction, "commit", commit)
    query.plan(1, 2)
    query.commit(1, numbers)
    first, second = attempts
    assert (first._producer is second._producer) == (fails == "at the end")  # not fenced there
    assert read_committed(cluster, query.topic) == [*values(0), *numbers]


def test_a_batch_that_spark_has_not_logged_is_refused(query: Query) -> None:
    with pytest.raises(KafkaRebalanceError, match="asyncProgressTrackingEnabled"):
        query.commit(0, values(1))


def test_another_querys_open_transaction_does_not_hide_the_marker(
    cluster: LocalKafka, query: Query, tmp_path: Path
) -> None:
    """The marker lies behind it, and would be read as missing (kafka-flow 857)."""
    query.plan(0, 1)
    query.commit(0, values(1))
    with producer_of(cluster, f"{query.topic}-other", transaction_timeout_ms=3_000) as other:
        markers = "__kafka_deferred_sink"
        where = partition_of_key(query.id.encode(), other.partitions_for(markers))
        open_one = other.transaction()
        open_one.send(markers, b"{}", b"another query", partition=where)
        open_one.flush()
        query.plan(1, 2)
        query.commit(1, values(2))
        drop_writer(query.id)
        # The other one's transaction ends by its time-out.
        query.commit(1, values(2), "run-2")
    assert read_committed(cluster, query.topic) == values(1, 2)
