"""``python -m demos.catch_up``: two queries after a kill -9 and a backlog.

One has ``parallelRebalance=live`` (KIP-333), the other reads in order; they are otherwise the same.
``course`` kills and restarts them, ``screen`` shows it live; ``figures`` evaluates the ledger,
``report`` and ``picture`` show the result.
"""
