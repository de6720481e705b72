"""Planning the next batch: the ends of the logs, the batch's bounds, and its tasks."""
