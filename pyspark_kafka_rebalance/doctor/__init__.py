"""``python -m pyspark_kafka_rebalance doctor``: checks this installation, and advises.

The probes (``python_probe``, ``spark_probe``, ``broker_probe``) gather facts; ``judgement``, which
is pure, evaluates them. Importing the command imports neither Spark nor kafka.
"""
