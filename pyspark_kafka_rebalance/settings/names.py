"""Names that brokers can know; imports nothing that can be missing."""

from __future__ import annotations

import argparse
import re

#: A string of the protocol has its length in 16 bits.
_MOST_BYTES = 2**15 - 1

_TOPIC = re.compile("[a-zA-Z0-9._-]{1,249}")

#: What `is_name` and `is_topic_name` allow.
NAMES = f"a name of 1 to {_MOST_BYTES} bytes in UTF-8"
TOPIC_NAMES = "1 to 249 ASCII letters, digits, '.', '_' and '-', but not '.' and '..'"


def is_name(name: object) -> bool:
    """Whether this can be a group, or a transactional id."""
    if not isinstance(name, str) or not name:
        return False
    try:
        return len(name.encode()) <= _MOST_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def is_topic_name(name: object) -> bool:
    """Whether Kafka allows a topic of this name."""
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def utf8(text: str) -> str:
    """A name, as an argument of a command; refuses bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a}: UTF-8") from error
    if text and not is_name(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!a}…: {NAMES}")
    return text
