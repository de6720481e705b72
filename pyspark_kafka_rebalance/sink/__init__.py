"""The sink: one Kafka transaction a micro-batch, with the offsets of its input.

Tasks encode rows to record batches; the driver's commit process alone writes them.
"""
