"""The Spark data source ``kafka_deferred``. Depends on Spark, consumer/ and fetch/."""
