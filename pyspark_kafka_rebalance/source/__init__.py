"""The Spark data source ``kafka_deferred``. Depends on Spark, consumer/ and fetch/."""

from .spark.process_log import is_sparks_process, log_like_spark

# Before any other module here can log: every object that Spark unpickles imports this.
if is_sparks_process():
    log_like_spark()
