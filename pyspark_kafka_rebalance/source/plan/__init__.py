"""What the next batch reads: how far the logs go, what bounds a batch, and its tasks."""
