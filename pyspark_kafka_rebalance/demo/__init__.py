"""``python -m pyspark_kafka_rebalance.demo``: three queries share a group while they come and go.

``scenario`` runs it, ``group_watch`` asks the broker, ``screen`` shows it live; ``figures``
computes what the ledger says, ``report`` and ``picture`` show that. ``load`` and ``blocking`` are
processes of their own.
"""
