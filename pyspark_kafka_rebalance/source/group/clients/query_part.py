"""QueryPart: the base class of the parts of one query's membership, beside its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....consumer.pump import Pump
from ..query_state import QueryState
from .query_members import QueryMembers

if TYPE_CHECKING:
    from ...options.source_options import SourceOptions


class QueryCore(NamedTuple):
    """The objects that all parts of one query's membership share."""

    options: SourceOptions
    state: QueryState
    members: QueryMembers
    pump: Pump


class QueryPart:
    """Has the core; the pump cancels its waits at shutdown, and raises the membership's error.

    A look-up goes through the members' clients, and its results into the state.
    """

    def __init__(self, core: QueryCore) -> None:
        self._options, self._state, self._members, self._pump = core
