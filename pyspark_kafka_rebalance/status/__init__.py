"""The command ``python -m pyspark_kafka_rebalance.status``: a consumer group as a table.

It shows groups of any client, in both protocols. It joins nothing and commits nothing.
"""
