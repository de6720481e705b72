"""One member of a producer group: what it owns, and how it takes source partitions over."""
