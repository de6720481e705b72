"""What a query's checkpoint holds, and where; only read."""
