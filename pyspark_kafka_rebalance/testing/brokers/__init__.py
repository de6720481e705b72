"""The parts of a LocalKafka: brokers, their storage, certificates and tokens."""
