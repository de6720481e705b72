"""The partitions that a query owns, and how far it has read them. Pure."""
