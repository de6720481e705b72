"""Things to watch, from a checkout: ``make demo``, ``make demo-catch-up``, ``make demo-producers``.

``rebalance``, ``catch_up`` and ``producers`` are run by ``python -m demos.rebalance`` and so on;
the modules beside them are shared.
"""
