"""What a query owns of its partitions, and how far it has read them. Pure."""
