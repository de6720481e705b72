"""LeftBehind: what a run that was abandoned knew, for the one that reads on. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafka.structs import TopicPartition

from ..offsets import RebalanceEvent
from .batch_state import Gaps


class LeftBehind(NamedTuple):
    """As its members have left it.

    Attributes
    ----------
    untold : list of RebalanceEvent
        The rows that it had yet to tell.
    known : dict
        Where each partition was to go on.
    heard : dict
        What the group had committed: if it has less by now, a log has become shorter.
    gaps : dict
        What is still to be read below where partitions go on.
    """

    untold: list[RebalanceEvent]
    known: dict[TopicPartition, int]
    heard: dict[TopicPartition, int]
    gaps: Gaps
