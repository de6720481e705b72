"""The seam to kafka-python's transactions: the only place that uses their private names."""
