"""``python -m benchmarks.catch_up``: what live records wait for after a failure (KIP-333).

``client`` kills an owner, writes a backlog and lets another take over (``member``, a process);
``query`` does so with Spark queries (``reader``). Both write what was handed out as ``runs`` of
offsets, which are audited. ``memory`` watches a process with many gaps; ``report`` shows it all.
"""
