"""The Kafka clients of a query: members of its group, or one for ``assign``."""
