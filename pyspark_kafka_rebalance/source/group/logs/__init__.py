"""What brokers say about the partitions' logs: ends, starts, sizes, timestamps, deletions."""
