"""Planning the next batch: how far the logs go, what bounds the batch, and its tasks."""
