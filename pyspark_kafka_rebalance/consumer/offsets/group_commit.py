"""GroupCommit: what a group has committed of one partition. Pure."""

from __future__ import annotations

from typing import NamedTuple

from .commit_metadata import Remaining
from .origin import Origin


class GroupCommit(NamedTuple):
    """A committed offset with its metadata, as far as they are ours.

    Attributes
    ----------
    remaining : Remaining
        What is left to process.
    origin : Origin or None
        Which query committed; None if another client did, or an older release.
    """

    remaining: Remaining
    origin: Origin | None = None
