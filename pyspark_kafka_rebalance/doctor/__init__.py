"""``python -m pyspark_kafka_rebalance doctor``: what works here, and what to do about the rest.

The probes (``python_probe``, ``spark_probe``, ``broker_probe``) gather facts; ``judgement``, which
is pure, decides what they mean. Importing the command imports neither Spark nor kafka.
"""
