"""Which tests a run leaves out unless it is asked for all (``--all``)."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

PROTOCOLS = frozenset({"classic", "consumer"})


def left_out(items: Iterable[pytest.Item], one_protocol: bool = False) -> set[pytest.Item]:
    """Return the long tests, and the repetitions of others with the second group protocol.

    A file with the mark ``each_protocol`` has what the protocols decide, and repeats it with both.
    Elsewhere one is enough, since what the file tests goes on above them: by its name a test gets
    the same one each time, and of a file's tests some get one and some the other. With
    ``one_protocol`` that holds for all files.
    """
    items = list(items)
    out = {item for item in items if item.get_closest_marker("long") is not None}
    twins: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        protocol = _protocol_of(item)
        repeats = not one_protocol and item.get_closest_marker("each_protocol") is not None
        if protocol and item not in out and not repeats:
            twins[item.nodeid.replace(protocol, "")][protocol] = item
    for name, both in twins.items():
        core = [p for p, item in both.items() if item.get_closest_marker("core") is not None]
        if both.keys() == PROTOCOLS and len(core) < 2:
            (kept,) = core or [sorted(PROTOCOLS)[zlib.crc32(name.encode()) % 2]]
            out |= {item for protocol, item in both.items() if protocol != kept}
    return out


def _protocol_of(item: pytest.Item) -> str | None:
    spec = getattr(item, "callspec", None)
    protocol = None if spec is None else spec.params.get("protocol")
    return protocol if protocol in PROTOCOLS else None
