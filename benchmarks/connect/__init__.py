"""Write a file's lines to a topic, exactly once: a producer group against Kafka Connect."""
