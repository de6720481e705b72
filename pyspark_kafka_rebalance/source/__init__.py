"""The Spark data source ``kafka_deferred``. Knows Spark; uses consumer/ and fetch/."""
