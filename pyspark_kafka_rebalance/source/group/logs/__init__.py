"""The partitions' logs on the brokers: ends, starts, sizes, timestamps, deletions."""
