"""Real brokers on this machine, for the demo, the tests and users' own tests."""
