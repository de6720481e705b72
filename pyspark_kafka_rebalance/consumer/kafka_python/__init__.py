"""The seam to kafka-python: the only place in ``consumer/`` that touches its private names."""
