"""The options of ``format("kafka_deferred")``: their names, values and defaults. Pure."""
