"""Files of record batches, for output that is too large for commit messages."""
