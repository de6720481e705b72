"""``python -m pyspark_kafka_rebalance doctor``: what works here, and what to do about the rest.

Facts are gathered at the edge (``python_probe``, ``spark_probe``, ``broker_probe``); what they mean
is decided in ``judgement``, which is pure. Importing the command imports neither Spark nor kafka.
"""
