"""The doctor's findings, printed one per line. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is. A hint is a setting worth having; nothing is wrong without it."""

    OK = "ok"
    HINT = "hint"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    subject: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        # A quoted error can have several lines; a finding has one.
        return " ".join(f"{self.level.value:<4}  {self.subject}: {self.found}{advice}".split("\n"))


def ok(subject: str, found: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, found)


def hint(subject: str, found: str, advice: str) -> Finding:
    """All is well, and could be better."""
    return Finding(Level.HINT, subject, found, advice)


def warn(subject: str, found: str, advice: str) -> Finding:
    """It works in part, or not for everything."""
    return Finding(Level.WARN, subject, found, advice)


def fail(subject: str, found: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(Level.FAIL, subject, found, advice)


def total(levels: Sequence[Level]) -> str:
    """The last line of the report."""
    failed, warned = levels.count(Level.FAIL), levels.count(Level.WARN)
    return f"{failed} failed, {warned} warning{'' if warned == 1 else 's'}"
