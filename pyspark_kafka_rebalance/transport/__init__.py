"""How kafka-python's sockets are used: secured clients, large reads, its log, the version."""
