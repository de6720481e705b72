"""What brokers say about the partitions' logs: ends, starts, timestamps, deletions."""
