"""The offsets and partitions that Spark keeps for a query, and their JSON. Pure."""
