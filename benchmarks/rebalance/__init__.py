"""``python -m benchmarks.rebalance``: what a rebalance costs the members of a consumer group.

``peers`` lists the clients, ``scenario`` runs one of them, each member in a process of its own
(``member`` with one of ``clients``, or ``clients/Member.java``), which does with its records what
``application`` says and writes the ledger of ``polls``. ``judge`` says what came of it, ``goals``
whether that is good enough, ``report`` and ``picture`` show it.
"""
