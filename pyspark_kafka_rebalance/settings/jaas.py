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

    Parameters
    ----------
    text : str
        The setting.
    form : str
        What it should look like, for the error.

    Returns
    -------
    str, dict of str to str
        The login module and its options.

    Raises
    ------
    OptionError
        It is not one such entry.
    """
    tokens: list[str] = []
    marks: list[bool] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise jaas_error(form)
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
    # Module, flag, three tokens per pair, and the semicolon, which Java needs and people forget.
    if len(tokens) < 3 or tokens[-1] != ";" or any(marks[:2]):
        raise jaas_error(form)
    options: dict[str, str] = {}
    for i in range(2, len(tokens) - 1, 3):
        if marks[i : i + 3] != [False, True, False] or tokens[i + 1] != "=":
            raise jaas_error(form)
        options[tokens[i]] = tokens[i + 2]
    return tokens[0], options


def jaas_error(allowed: str) -> OptionError:
    """Return the error for a line that is not allowed; it shows nothing of the line."""
    return OptionError("kafka.sasl.jaas.config", REDACTED, allowed)
