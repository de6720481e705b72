"""The file of ``--command-config``: Java properties, as Kafka's own tools read them. Pure."""

from __future__ import annotations

import re


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse what ``java.util.Properties`` reads, without ``\uXXXX``.

    A value may go on in the next line after a backslash; ``#`` and ``!`` begin comments.
    """
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while re.search(r"(?<!\\)(\\\\)*\\$", logical):
            logical = logical[:-1] + next(lines, "").lstrip()
        match = re.match(r"((?:\\.|[^\s:=\\])*)\s*[:=]?\s*(.*)", logical)
        assert match is not None  # of anything
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _unescaped(text: str) -> str:
    ends = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    return re.sub(r"\\(.)", lambda match: ends.get(match[1], match[1]), text)
