"""Claim: until when nobody else can have been given what a member owns. Pure.

ILLEGAL_GENERATION says that the coordinator knows the member, in another generation. There are
three ways to get there:

* The coordinator has failed over. It persists a generation when the leader's assignment arrives; a
  generation that was not persisted is forgotten. The group is in the previous generation, and
  whoever owned a partition in it still does.
* An answer to this member was lost. Its JoinGroup has claimed all the same, and what a member
  claims goes to nobody else.
* The group has gone on without the member. A dynamic member is removed then, and gets
  UNKNOWN_MEMBER_ID. A static member stays, with what its last JoinGroup claimed, and the leader may
  have given the rest away. Before that, the coordinator waits for its JoinGroup for the rebalance
  timeout.

So the claim of a dynamic member stands as long as the coordinator knows the member. The claim of a
static member stands for the rebalance timeout after the group was last known to be in its
generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class Claim:
    """Whether a member may claim what it owns, when the group may have gone on without it.

    Parameters
    ----------
    static : bool
        Whether the member has a ``group.instance.id``.
    rebalance_timeout_ms : int
        How long the coordinator waits for its JoinGroup.
    clock : callable
        Seconds; must run during suspension.
    """

    def __init__(self, static: bool, rebalance_timeout_ms: int, clock: Callable[[], float]) -> None:
        self._lasts_s = rebalance_timeout_ms / 1000 if static else math.inf
        self._clock = clock
        self._stood_at = -math.inf

    def stood(self, sent_at: float) -> None:
        """The coordinator accepted the member's generation in a request sent at ``sent_at``."""
        self._stood_at = max(self._stood_at, sent_at)

    def stands(self) -> bool:
        """Whether what is owned may be claimed: nobody else was given any of it."""
        return self._clock() - self._stood_at < self._lasts_s or self._lasts_s == math.inf
