"""Offset ranges to Arrow. Knows Kafka's wire format and Arrow; no groups, no Spark."""
