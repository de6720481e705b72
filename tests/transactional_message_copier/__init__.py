"""Our answer to Kafka's TransactionalMessageCopier, for Kafka's system tests; see ``copier``."""
