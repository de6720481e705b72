"""What one member handed out of its partitions, and what of it is processed."""
