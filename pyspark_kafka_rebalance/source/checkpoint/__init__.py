"""A query's checkpoint: its logs, and where they are. Read only."""
