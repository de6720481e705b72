"""Arrow columns, or records one by one, to record batches (format 2), compiled where possible."""
