"""SetBack: that a group was set back to a restored checkpoint, and which records come again. Pure.

The commits of a partition carry the last few of these, oldest first, from owner to owner, and each
query logs the token of the last one that it has followed. So a checkpoint is compared once: what
was set back after that token it does not know of, and what it says of those records is void.

In a commit each is a tilde, who set the group back, the token, and the ranges that come again::

    ~90a1c3e5f7b2d4e6-5d0f33c1-4000-5200

Where several are joined to one, or ranges are, more comes again. But a commit without room for its
origin names no set-back at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .offset_set import Gap

#: How many set-backs a commit names; older ones are joined to the oldest of these.
MOST_SET_BACKS = 4
#: How many ranges each of them has; more are joined to one.
_MOST_RANGES = 4

#: In place of a query's id: none, or several.
NOBODY = "_"

SET_BACKS = r"(?:~[A-Za-z0-9_]{1,64}-[0-9a-f]{8}(?:-[0-9]{1,19}-[0-9]{1,19})+)*"
_ONE = re.compile(r"~([A-Za-z0-9_]+)-([0-9a-f]{8})((?:-[0-9]+)+)")


class SetBack(NamedTuple):
    """One time that the group was set back on a partition."""

    query: str  #: the id of the query whose checkpoint was restored
    token: str  #: eight hexadecimal digits, which no other set-back of the partition has
    again: tuple[Gap, ...]  #: what is delivered again from then on; in order

    @classmethod
    def of(cls, query: str, token: str, again: Iterable[Gap]) -> SetBack:
        """With more ranges than there is room for, everything between the first and the last."""
        ranges = tuple(again)
        if len(ranges) > _MOST_RANGES:
            ranges = (Gap(ranges[0].start, ranges[-1].end),)
        return cls(query, token, ranges)


def extended(before: Sequence[SetBack], last: SetBack) -> tuple[SetBack, ...]:
    """One more; if they are too many, the oldest two are joined."""
    found = (*before, last)
    while len(found) > MOST_SET_BACKS:
        found = (joined(found[:2]), *found[2:])
    return found


def joined(set_backs: Sequence[SetBack]) -> SetBack:
    """As one, with the token of the last: who has not followed that has followed none of them."""
    queries = {one.query for one in set_backs}
    ranges = [gap for one in set_backs for gap in one.again]
    hull = Gap(min(gap.start for gap in ranges), max(gap.end for gap in ranges))
    return SetBack(queries.pop() if len(queries) == 1 else NOBODY, set_backs[-1].token, (hull,))


def not_followed(set_backs: Sequence[SetBack], token: str | None, query: str) -> list[Gap]:
    """What comes again without a query's knowledge that has last followed the one of this token.

    Not where that query itself had the group set back: its sink went back with its checkpoint, so
    whatever checkpoint it has speaks for its sink.
    """
    unknown = list(set_backs)
    for at, one in enumerate(set_backs):
        if one.token == token:
            unknown = list(set_backs[at + 1 :])
    return sorted(gap for one in unknown if one.query != query for gap in one.again)


def set_backs_text(set_backs: Iterable[SetBack]) -> str:
    """As it is in a commit; empty if there are none."""
    return "".join(
        f"~{one.query}-{one.token}" + "".join(f"-{gap.start}-{gap.end}" for gap in one.again)
        for one in set_backs
    )


def parse_set_backs(text: str) -> tuple[SetBack, ...]:
    """What :func:`set_backs_text` has made; the text matches ``SET_BACKS``."""
    found = []
    for query, token, bounds in _ONE.findall(text):
        numbers = [int(number) for number in bounds[1:].split("-")]
        ranges = tuple(map(Gap, numbers[::2], numbers[1::2]))
        found.append(SetBack(query, token, ranges))
    return tuple(found)
