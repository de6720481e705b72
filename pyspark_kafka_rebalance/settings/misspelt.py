"""Which known name a misspelt one was meant to be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: A misspelling differs from the intended name in at most this part of its letters.
_STRICT = 0.15

#: Less strict, for names that can hardly be anything else: they start with "kafka.".
LENIENT = 0.19


def meant_by(name: str, known: Iterable[str], most: float = _STRICT) -> str | None:
    """Return the known name of which this is a misspelling; None if it resembles none.

    Case and separators do not count, and a name that is cut short is one, too.

    ``most`` is the largest number of wrong letters, as a part of the longer name's letters.
    """
    written = _letters(name)
    wrong = {candidate: _wrong(written, _letters(candidate)) for candidate in sorted(known)}
    near = {
        candidate: part
        for candidate, part in wrong.items()
        if part <= most or _cut_short(written, _letters(candidate))
    }
    return min(near, key=near.__getitem__, default=None)


def _letters(name: str) -> str:
    return re.sub(r"[\s._-]", "", name.lower())


def _cut_short(written: str, meant: str) -> bool:
    return meant.startswith(written) and 2 * len(written) >= len(meant)


def _wrong(written: str, meant: str) -> float:
    """How many letters are wrong, as a part of the longer name's."""
    longer = max(len(written), len(meant), 1)
    if abs(len(written) - len(meant)) > longer // 2:
        return 1.0  # as good as, and sooner known
    return _edits(written, meant) / longer


def _edits(a: str, b: str) -> int:
    """Letters that are missing, too many or wrong; two that are swapped count as one."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        two_before, before, row = before, row, [i]
        for j, other in enumerate(b, start=1):
            edits = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                edits = min(edits, two_before[j - 2] + 1)
            row.append(edits)
    return row[-1]
