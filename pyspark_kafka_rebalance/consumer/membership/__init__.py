"""A member of a group: its protocol, its partitions, and how long they are certain."""
