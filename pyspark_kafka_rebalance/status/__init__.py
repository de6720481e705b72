"""The command ``python -m pyspark_kafka_rebalance.status``: a consumer group as a table.

Groups of any client, in both protocols. It joins nothing and commits nothing.
"""
