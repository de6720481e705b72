"""``python -m pyspark_kafka_rebalance.demo.catch_up``: two queries after a kill -9 and a backlog.

One has ``parallelRebalance=live`` (KIP-333), the other reads in order; all else is the same.
``course`` kills and restarts them, ``screen`` shows it live; ``figures`` computes what the ledger
says, ``report`` and ``picture`` show that.
"""
