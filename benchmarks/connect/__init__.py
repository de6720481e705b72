"""Lines of a file into a topic, exactly once: by a producer group, and by Kafka Connect."""
