"""Topic patterns: which of them a broker may match, and how it spells them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Kafka's own topics, of all versions so far; none of them need exist when a client subscribes.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def broker_pattern(pattern: str) -> str:
    r"""Translate a pattern of kafka-python's for the broker, to RE2 syntax.

    kafka-python's patterns are Python's and match the beginning of a name. The broker's match the
    whole name, and spell Python's ``\Z`` as ``\z``.
    """
    return "(?:" + re.sub(r"\\(.)", lambda e: r"\z" if e[1] == "Z" else e[0], pattern) + ").*"


def matches_internal_topics(pattern: str, internal_topics: Collection[str]) -> bool:
    """Whether a pattern of kafka-python's matches one of Kafka's own topics.

    A broker would assign that topic like any other. RE2 cannot exclude a name: it has no
    look-ahead.

    Parameters
    ----------
    pattern : str
        In Python's syntax.
    internal_topics : collection of str
        The topics that brokers call internal, in addition to ``INTERNAL_TOPICS``.
    """
    return any(re.match(pattern, topic) for topic in INTERNAL_TOPICS.union(internal_topics))
