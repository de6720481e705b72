"""The command ``python -m pyspark_kafka_rebalance.transactions``: open transactions of a cluster.

It shows transactions of any client and the partitions they hold back, and aborts one (KIP-664,
KIP-994).
"""
