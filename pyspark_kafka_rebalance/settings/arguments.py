"""Types of command-line arguments, for ``argparse``; imports nothing that can be missing."""

from __future__ import annotations

import argparse


def utf8(text: str) -> str:
    """Accept a name that brokers can know; refuse command-line bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a}: UTF-8") from error
    return text
