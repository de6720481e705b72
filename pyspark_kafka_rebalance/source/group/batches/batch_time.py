"""How long a batch may take before its partitions are given up, and the advice to log. Pure."""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition

from ....errors import names_of


class BatchTime:
    """Times the oldest unproven batch, by the caller's clock.

    Parameters
    ----------
    limit_s : float or None
        ``maxBatchDurationMs`` in seconds; None for no limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._batch: int | None = None
        self._began_at = 0.0

    def is_over(self, batch: int | None, now: float) -> bool:
        """Whether the batch has exceeded the limit.

        Parameters
        ----------
        batch : int or None
            The number of the oldest unproven batch with ranges; None if there is none.
        now : float
            Seconds.
        """
        if batch != self._batch:
            self._batch, self._began_at = batch, now
        return (
            batch is not None and self._limit_s is not None and now - self._began_at > self._limit_s
        )


def advice_on_overdue(overdue: Collection[TopicPartition], has_commit_log: bool) -> str:
    """The advice to log for partitions whose revoke has waited too long for its batch.

    Parameters
    ----------
    overdue : collection of TopicPartition
        Lost partitions, handed out in a batch that is not known to be committed by Spark.
    has_commit_log : bool
        Whether the source looks into the query's commit log.
    """
    text = (
        "lost after revokeTimeoutMs, before their batch was known to be committed: "
        f"{names_of(overdue)}. The next owner delivers these records again, even if Spark "
        "committed the batch in time. "
    )
    if has_commit_log:
        return f"{text}What helps: shorter batches, or a larger revokeTimeoutMs"
    return (
        f"{text}What helps: the option checkpointLocation, with which the source need not wait for "
        "the next trigger; a shorter trigger interval; shorter batches; a larger revokeTimeoutMs"
    )
