# Databricks notebook source
# MAGIC %md
# MAGIC # Orders from Kafka to a Delta table, as a member of a consumer group
# MAGIC
# MAGIC Install `pyspark-kafka-rebalance` as a **library of the cluster** (Compute → Libraries →
# MAGIC Install new → PyPI, or the wheel from a volume): the driver's planner process and the
# MAGIC executors both import it. The runtime's Spark must be 4.0 or newer. Run the same notebook as
# MAGIC a second job, with a checkpoint and a table of its own, and the two share the topic.
# MAGIC
# MAGIC An order is JSON: `{"id": 17, "customer": "c-3", "amount": 12.5}`. The login is SCRAM over
# MAGIC TLS, with the secrets `user` and `password` of a scope.

# COMMAND ----------

dbutils.widgets.text("bootstrap_servers", "broker.example.com:9093")
dbutils.widgets.text("topic", "orders")
dbutils.widgets.text("group_id", "orders-etl")
dbutils.widgets.text("checkpoint", "/Volumes/main/sales/checkpoints/orders-1")
dbutils.widgets.text("table", "main.sales.orders_1")
dbutils.widgets.text("secret_scope", "kafka")
dbutils.widgets.text("trust", "")  # PEM file of the brokers' authority, if it is your own
dbutils.widgets.text("trigger", "10 seconds")

# COMMAND ----------

from pyspark.errors import AnalysisException

from pyspark_kafka_rebalance import KafkaDeferredDataSource, progress, stop_gracefully

try:
    spark.dataSource.register(KafkaDeferredDataSource)
except AnalysisException as error:  # Spark 4.0, if it has found the package by itself
    if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
        raise

scope = dbutils.widgets.get("secret_scope")
user = dbutils.secrets.get(scope, "user")
password = dbutils.secrets.get(scope, "password")
checkpoint = dbutils.widgets.get("checkpoint")

options = {
    "kafka.bootstrap.servers": dbutils.widgets.get("bootstrap_servers"),
    "kafka.group.id": dbutils.widgets.get("group_id"),
    "subscribe": dbutils.widgets.get("topic"),
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "1000000",
    # A volume is a local path, too: a stop then finds the last batch in the query's commit log.
    "checkpointLocation": checkpoint,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{password}";'
    ),
}
if trust := dbutils.widgets.get("trust"):
    options |= {"kafka.ssl.truststore.location": trust, "kafka.ssl.truststore.type": "PEM"}
records = spark.readStream.format("kafka_deferred").options(**options).load()

# COMMAND ----------

query = (
    records.selectExpr(
        "from_json(cast(value AS STRING), 'id BIGINT, customer STRING, amount DOUBLE') AS parsed",
        "timestamp",
        "partition",
        "offset",
    )
    .select("parsed.*", "timestamp", "partition", "offset")
    .writeStream.option("checkpointLocation", checkpoint)
    .queryName(dbutils.widgets.get("group_id"))
    .trigger(processingTime=dbutils.widgets.get("trigger"))
    .toTable(dbutils.widgets.get("table"))
)

# COMMAND ----------

# MAGIC %md
# MAGIC Where the query stands: position, end offset, lag and state of each partition. Run the cell
# MAGIC again for the latest.

# COMMAND ----------

display(progress(query).to_pandas())

# COMMAND ----------

# MAGIC %md
# MAGIC Before a new version of the job: stop between two batches, so that nothing is read twice.

# COMMAND ----------

stop_gracefully(query)
