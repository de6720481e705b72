"""Requests to the group coordinator, and the meaning of its answers for a member."""
