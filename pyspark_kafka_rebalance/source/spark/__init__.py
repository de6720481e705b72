"""What is of Spark: its versions, its processes, its schema, and how it shows errors."""
