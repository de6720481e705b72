"""The records of several partitions in the order of their timestamps (KIP-695)."""
