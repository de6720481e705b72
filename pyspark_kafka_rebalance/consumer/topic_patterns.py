"""Patterns of topic names: which of them a broker may match, and how it spells them; pure."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Kafka's own topics, of all versions so far; there need not be any when a client subscribes.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def broker_pattern(pattern: str) -> str:
    r"""A pattern of kafka-python's as one for the broker, in RE2 syntax.

    kafka-python's are Python's and match the beginning of a name; the broker's match the whole of
    it, and spell Python's ``\Z`` as ``\z``.
    """
    return "(?:" + re.sub(r"\\(.)", lambda e: r"\z" if e[1] == "Z" else e[0], pattern) + ").*"


def matches_internal_topics(pattern: str, internal_topics: Collection[str]) -> bool:
    """Whether a pattern of kafka-python's matches one of Kafka's own topics.

    A broker would assign it like any other, and RE2 cannot exclude a name: it has no look-ahead.

    Parameters
    ----------
    pattern : str
        In Python's syntax.
    internal_topics : collection of str
        What brokers call internal, beside those that are always.
    """
    return any(re.match(pattern, topic) for topic in INTERNAL_TOPICS.union(internal_topics))
