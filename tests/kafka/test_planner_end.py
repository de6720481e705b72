"""How a planner process ends, as Spark ends it: a closed socket and SIGTERM, in any order."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from kafka import KafkaAdminClient

from pyspark_kafka_rebalance.testing import LocalKafka

#: What PySpark's python_streaming_source_runner does, with the signal at a certain moment.
RUNNER = textwrap.dedent("""
    import json
    import signal
    import sys
    from pyspark.sql.streaming.datasource import ReadMaxRows
    from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource

    moment, options = sys.argv[1], json.loads(sys.argv[2])
    topic = options["subscribe"]
    source = KafkaDeferredDataSource(options)
    reader = source.streamReader(source.schema())
    stop = reader.stop

    def stop_after_the_signal():
        signal.raise_signal(signal.SIGTERM)
        stop()

    try:
        try:
            begin = reader.initialOffset()
            while topic not in begin:  # a batch without records may come first: the starts alone
                end = reader.latestOffset(begin, ReadMaxRows(100))
                if end != begin:
                    reader.partitions(begin, end)
                    reader.commit(end)
                begin = end
            if moment == "while it waits":
                signal.raise_signal(signal.SIGTERM)
            if moment == "as stop() begins":
                reader.stop = stop_after_the_signal
            raise EOFError("Spark has closed the socket")
        finally:
            reader.stop()
    except BaseException:
        sys.exit(-1)
""")


@pytest.mark.parametrize("moment", ["never", "while it waits", "as stop() begins"])
def test_it_commits_and_leaves_whenever_the_signal_comes(
    kafka: LocalKafka, topic: str, group_id: str, moment: str
) -> None:
    """In one of twenty stops on a busy machine the signal cut off the call of stop() as it began.

    Then nothing was committed, and the group kept a dead member until its session ended.
    """
    kafka.produce(topic, [b"%d" % n for n in range(7)])
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group_id,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "readers": "1",
    }
    command = [sys.executable, "-c", RUNNER, moment, json.dumps(options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 255, ended.stderr
    assert "Traceback" not in ended.stderr
    assert {p.partition: at for p, at in kafka.committed(group_id).items()} == {0: 7}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    assert admin.describe_groups([group_id])[group_id]["members"] == []
    admin.close()
