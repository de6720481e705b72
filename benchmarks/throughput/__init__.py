"""How many rows per second Spark reads from Kafka: this source and Spark's built-in one."""
