"""Requests to the group coordinator, and what its answers mean for a member."""
