"""Offset ranges to Arrow. Knows Kafka's wire format and Arrow; no groups, no Spark."""

from ..transport.kafka_python_version import require_supported_version

require_supported_version()  # before a module here imports a name that another version lacks
