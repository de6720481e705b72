"""Servers as processes of this machine: they end with their parent and keep their ports."""
