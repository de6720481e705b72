"""The door of a planner process: how the sink, on the same host, asks it about a batch."""
