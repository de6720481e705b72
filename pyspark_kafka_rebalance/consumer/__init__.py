"""Group membership. Knows Kafka; no Spark, no Arrow."""

from ..transport.kafka_python_version import require_supported_version

require_supported_version()  # before a module of this room imports what another version lacks
