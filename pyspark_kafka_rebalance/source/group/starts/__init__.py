"""Where a query starts: its group's offsets, its checkpoint, or ``startingOffsets``."""
