"""How many rows a second Spark takes from Kafka: this source beside Spark's built-in one."""
