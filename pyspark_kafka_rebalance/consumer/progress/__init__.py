"""The records that one member handed out, and which of them are processed."""
