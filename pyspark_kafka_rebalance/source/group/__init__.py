"""A query's side of its consumer group: members, owned partitions, proven batches, commits."""
