"""``python -m benchmarks.catch_up``: how long live records wait after a failure (KIP-333).

``client`` kills an owner, writes a backlog and lets another take over (``member``, a process);
``query`` does the same with Spark queries (``reader``). Both log the delivered records as ``runs``
of offsets, which are audited. ``memory`` watches a process with many gaps; ``report`` shows all.
"""
