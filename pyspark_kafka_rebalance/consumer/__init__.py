"""Group membership. Knows Kafka; no Spark, no Arrow."""
