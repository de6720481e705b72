"""The demo of producer groups: a database read by instances that join, leave, stall and die.

``python -m pyspark_kafka_rebalance.demo.producers`` shows it live, draws it, and compares tables
and topics at the end.
"""
