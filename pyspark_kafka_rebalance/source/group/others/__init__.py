"""Ownership and progress of the group's other members."""
