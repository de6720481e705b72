"""A group that rebalances under a steady load, and the cost; for the demos and benchmarks.

``scenario.py`` lets readers join and leave, and ``figures.py`` computes the cost from their ledger.
"""
