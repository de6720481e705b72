"""The seam to kafka-python's transactions: the only place for their private names."""
