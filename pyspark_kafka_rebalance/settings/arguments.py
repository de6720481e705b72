"""Types of command-line arguments, for ``argparse``. It imports nothing that can be missing."""

from __future__ import annotations

import argparse


def utf8(text: str) -> str:
    """A name as brokers know it; bytes of the command line that are no UTF-8 are refused."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a}: UTF-8") from error
    return text
