"""What a query's checkpoint holds, and where. Read only."""
