"""A member of a group: its protocol, what it owns, and how long that is certain."""
