"""Arrow or records to the log: encoder, transactions, delivery. No groups, no Spark."""

from ..transport.kafka_python_version import require_supported_version

require_supported_version()  # before a module here imports what another version lacks
