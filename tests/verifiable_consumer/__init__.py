"""Our answer to Kafka's VerifiableConsumer, for Kafka's system tests; see ``consumer``."""
