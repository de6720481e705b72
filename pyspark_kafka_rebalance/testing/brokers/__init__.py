"""What a LocalKafka is made of: brokers, their storage, certificates and tokens."""
