"""Clock: a time that a test sets, for what is given a clock."""

from __future__ import annotations


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now
