"""Claim: until when nobody else can have got what a member owns, pure.

What ILLEGAL_GENERATION means for it. The coordinator knows the member, in another generation:

* It has failed over. A generation is written down when the leader's assignment has come, and one
  that was not is forgotten: the group is in the one before, and whoever owned anything in that
  still does.
* An answer to this member was lost. The JoinGroup has claimed all the same, and what a member
  claims goes to nobody else.
* The group has gone on without the member. A dynamic member is removed then, and told so
  (UNKNOWN_MEMBER_ID). A static one stays, with what its last JoinGroup claimed, and the leader may
  have given the rest away. The coordinator waits for its JoinGroup before that, for the rebalance
  timeout.

So the claim of a dynamic member stands as long as it is known, and that of a static one for the
rebalance timeout after the group was last known to be in its generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class Claim:
    """What a member owns, as against a group that may have gone on without it.

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
        """Whether what is owned may be claimed: nobody else has got any of it."""
        return self._clock() - self._stood_at < self._lasts_s or self._lasts_s == math.inf
