"""LeftBehind: what an abandoned run knew, for the run that continues the query. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafka.structs import TopicPartition

from ..offsets import RebalanceEvent
from .batch_state import Gaps


class LeftBehind(NamedTuple):
    """The state in which the members left.

    Attributes
    ----------
    untold : list of RebalanceEvent
        The event rows that it had not reported yet.
    known : dict
        The position at which each partition was to go on.
    heard : dict
        The group's committed offsets: if one is lower now, that log has become shorter.
    gaps : dict
        What is still to be read below those positions.
    """

    untold: list[RebalanceEvent]
    known: dict[TopicPartition, int]
    heard: dict[TopicPartition, int]
    gaps: Gaps
