"""The seam to kafka-python: the only place of ``consumer/`` that touches its private names."""
