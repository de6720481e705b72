import os
import sys

from pyspark.sql import SparkSession

from pyspark_kafka_rebalance import progress, stop_gracefully
from pyspark_kafka_rebalance.testing import LocalKafka

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need the package, too
builder = SparkSession.builder.master("local[2]")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
with LocalKafka() as kafka:  # a real broker; it ends with this block
    kafka.create_topic("orders", partitions=2)
    kafka.produce("orders", [b"order %d" % number for number in range(10)])
    orders = (
        spark.readStream.format("kafka_deferred")  # found by its name; nothing to register
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("kafka.group.id", "quickstart")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")  # a new group would start at the end
        .load()
        .selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
    )
    query = orders.writeStream.format("console").start()
    while sum(batch.numInputRows for batch in query.recentProgress) < 10:
        query.awaitTermination(1)  # raises the query's error, if it has one
    print(progress(query))
    print("stopped between two batches:", stop_gracefully(query))
