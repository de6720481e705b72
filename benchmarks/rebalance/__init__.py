"""``python -m benchmarks.rebalance``: what a rebalance costs the members of a consumer group.

``peers`` lists the clients, ``scenario`` runs one of them, each member in its own process
(``member`` with one of ``clients``, or ``clients/Member.java``). A member handles its records as
``application`` does, and writes the ledger of ``polls``. ``judge`` evaluates it, ``goals`` checks
the result against the goals, ``report`` and ``picture`` show it.
"""
