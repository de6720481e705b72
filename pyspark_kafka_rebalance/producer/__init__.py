"""KIP-509: producers that share the partitions of a source, as consumers share a topic's.

No Spark. ``group.py`` and ``asynchronous.py`` are the public faces, ``ownership.py`` decides.
"""
