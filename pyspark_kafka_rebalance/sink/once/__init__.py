"""Once: a batch and its marker in one transaction, whoever tries to write it, and how often."""
