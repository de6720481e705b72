"""A ``sasl.jaas.config`` line, read as Java reads it. No error message carries a secret."""

from __future__ import annotations

import re

from ..errors import OptionError
from .values import REDACTED

_TOKEN = re.compile(
    r"""\s*(?: (?P<word>[\w.$-]+) | "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)'
        | (?P<mark>[=;]) )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def parse_jaas(text: str, form: str) -> tuple[str, dict[str, str]]:
    """Parse one entry, ``Module flag key=value …;``, quoting as Java's StreamTokenizer.

    Returns the login module and its options. Raises OptionError if it is not one such entry;
    ``form`` describes the expected form in it.
    """
    tokens, marks = _tokens(text.rstrip(), form)
    if ";" not in {token for token, mark in zip(tokens, marks, strict=True) if mark}:
        # Java needs it, and people forget it.
        raise jaas_error(f"{form} (the semicolon at its end is missing)")
    # Module, flag, three tokens per pair, and the semicolon.
    end = next(i for i, token in enumerate(tokens) if marks[i] and token == ";")
    if end != len(tokens) - 1:
        raise jaas_error(f"{form} (one login module, and nothing after its semicolon)")
    # A third token that is a mark belongs to an option in the flag's place.
    if len(tokens) < 3 or any(marks[:2]) or (marks[2] and end != 2):
        raise jaas_error(f"{form} (a login module and a flag such as required come first)")
    options: dict[str, str] = {}
    for i in range(2, end, 3):
        if marks[i : i + 3] != [False, True, False] or tokens[i + 1] != "=":
            number = len(options) + 1
            raise jaas_error(f"{form} (option {number} after the flag is not name=value)")
        options[tokens[i]] = tokens[i + 2]
    return tokens[0], options


def _tokens(text: str, form: str) -> tuple[list[str], list[bool]]:
    """Return words and marks, and which of them are marks."""
    tokens: list[str] = []
    marks: list[bool] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise jaas_error(
                f"{form} (a quote is not closed, or a value with other characters "
                "than letters, digits and _ - . $ is not quoted)"
            )
        position = match.end()
        quoted = match["double"] if match["double"] is not None else match["single"]
        if quoted is not None:
            unescaped = re.sub(
                r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted, flags=re.DOTALL
            )
            tokens.append(unescaped)
        else:
            tokens.append(match["word"] or match["mark"])
        marks.append(match["mark"] is not None)
    return tokens, marks


def jaas_error(allowed: str) -> OptionError:
    """Return the error for a line that is not allowed; it shows nothing of the line."""
    return OptionError("kafka.sasl.jaas.config", REDACTED, allowed)
