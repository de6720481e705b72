"""Records to the log: encoder, transactions, delivery. No groups, no Spark."""
