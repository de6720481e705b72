"""``python -m demos.rebalance``: three queries share a group while they come and go.

``screen`` shows it live, ``report`` and ``picture`` show the result. The rest is in
``measuring``: ``scenario`` runs it, ``group_watch`` asks the broker, ``figures`` evaluates
the ledger; ``load`` and ``blocking`` run as separate processes.
"""
