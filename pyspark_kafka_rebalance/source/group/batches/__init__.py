"""The batches that Spark was given and has not committed yet. Pure."""
