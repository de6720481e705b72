"""How the text of one option becomes a value: as Java parses it, with one clear error.

A parser takes the stripped text and raises ``ValueError`` if it refuses it; the phrase next to it
describes the accepted values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..transport.log_redaction import REDACTED as REDACTED

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ValueType:
    """A parser and a phrase that describes the accepted values."""

    parse: Callable[[str], Any]
    allowed: str


def parse_value(option: str, text: str, value_type: ValueType) -> Any:
    """Parse one option's text, which is not a secret.

    Raises OptionError, which names the option, its value and the allowed ones.
    """
    try:
        return value_type.parse(text.strip())
    except ValueError:
        raise OptionError(option, text, value_type.allowed) from None


def items_of(text: str) -> list[str]:
    """Return the items of a list separated by commas.

    Empty items are ignored, as Java and Spark do: a template often leaves a comma behind.
    """
    return [item for item in map(str.strip, text.split(",")) if item]


def integer(low: int, high: int) -> ValueType:
    """Return the type of a whole number in decimal digits, both bounds included."""

    def parse(text: str) -> int:
        # int() by itself also takes "1_000" and digits of other scripts, which Java does not.
        # 40 digits are longer than any long; more are refused before int() limits its input.
        if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
            raise ValueError
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return ValueType(parse, f"a whole number from {low} to {high}")


def one_of(*choices: str, ignore_case: bool = False) -> ValueType:
    """Return the type of a text that is one of these; the result is spelt as here."""
    lookup = {(choice.lower() if ignore_case else choice): choice for choice in choices}

    def parse(text: str) -> str:
        try:
            return lookup[text.lower() if ignore_case else text]
        except KeyError:
            raise ValueError from None

    return ValueType(parse, " or ".join(choices))


def _boolean(text: str) -> bool:
    # Spark's toBoolean: "yes" and "1" are errors.
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def _non_empty(text: str) -> str:
    if not text:
        raise ValueError
    return text


_MS_OF_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str) -> int:
    # As Spark's timeStringAsMs, but without microseconds, which that rounds down.
    match = re.fullmatch("([0-9]{1,19})([a-z]*)", text.lower())
    if match is None or (match[2] or "ms") not in _MS_OF_UNITS:
        raise ValueError
    duration = int(match[1]) * _MS_OF_UNITS[match[2] or "ms"]
    if duration > LONG_MAX:
        raise ValueError
    return duration


DURATION_MS = ValueType(_duration_ms, "a time like 500ms, 30s, 15m, 2h or 1d")
BOOLEAN = ValueType(_boolean, "true or false")
TEXT = ValueType(str, "any text")
NON_EMPTY_TEXT = ValueType(_non_empty, "a non-empty text")
