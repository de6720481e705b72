"""``python -m pyspark_kafka_rebalance.demo``: three queries share a group while they come and go.

``screen`` shows it live, ``report`` and ``picture`` show the result. The rest is in
``testing.rebalances``: ``scenario`` runs it, ``group_watch`` asks the broker, ``figures`` evaluates
the ledger; ``load`` and ``blocking`` run as separate processes.
"""
