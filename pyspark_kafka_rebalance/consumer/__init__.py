"""Group membership. Knows Kafka, not Spark; imports Arrow only when it is first needed."""

from ..transport.kafka_python_version import require_supported_version

require_supported_version()  # before this package's modules import names that other versions lack
