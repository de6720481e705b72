"""Which brokers a producer group needs: those that can tell a former owner from the present one.

Both requests came with KIP-447. Without them everything seems to work, until a member that was
suspended beyond its session goes on: its transaction is accepted, and its records come twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import TxnOffsetCommitRequest

from ..errors import UnsupportedBrokerError

#: The first version that carries the member and its generation, which the group checks.
TXN_OFFSET_COMMIT_WITH_MEMBER = 3

#: The first version with ``require_stable``: the answer waits for transactions to be decided.
OFFSET_FETCH_STABLE = 7

_NEEDED = (
    (TxnOffsetCommitRequest, TXN_OFFSET_COMMIT_WITH_MEMBER),
    (OffsetFetchRequest, OFFSET_FETCH_STABLE),
)


def require_fencing(group_id: str, offered: Mapping[int, tuple[int, int]]) -> None:
    """Refuse brokers that would let a former owner of a source partition commit.

    Parameters
    ----------
    group_id : str
        The producer group.
    offered : mapping of int to (int, int)
        The versions that a broker offers, oldest and newest, by API key.

    Raises
    ------
    UnsupportedBrokerError
        Names each request, what is offered, and what is needed.
    """
    missing = []
    for request, needed in _NEEDED:
        newest = offered.get(request.API_KEY, (-1, -1))[1]
        if newest < needed:
            name = request.__name__.removesuffix("Request")
            missing.append(f"{name} v{needed} ({f'v{newest}' if newest >= 0 else 'none'} there)")
    if missing:
        raise UnsupportedBrokerError(
            f"producer group {group_id!r} needs Apache Kafka 2.5 or later: the brokers lack "
            f"{' and '.join(missing)}, so nothing would keep a former owner of a source partition "
            "from committing its records a second time (KIP-447)"
        )
