"""kafka_progress(progress): a query's progress as Spark's own Kafka source reports it. Pure.

Code that watches queries knows that source by its description, its offsets and its metrics. Spark
lets a Python source set only the offsets, so the rest is computed here, from nothing but them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafka.structs import TopicPartition

from .offsets.offset_json import OURS, by_topic, is_own, parse_offset
from .offsets.stream_offset import StreamOffset
from .progress import as_dict, is_ours, plain_offset

_OFFSETS = ("startOffset", "endOffset", "latestOffset")


def kafka_progress(progress: Any) -> Any:
    """Return a progress in which each source ``kafka_deferred`` looks like Spark's own.

    Its description is ``KafkaV2[Subscribe[…]]`` with the topics whose positions are known, its
    offsets have only positions, and its metrics are ``minOffsetsBehindLatest``,
    ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, over the partitions that the query
    owns. With ``parallelRebalance=live`` they include the offsets that are left in gaps. There are
    no metrics while no end offset is known, as with Spark before 4.2. Other sources stay as they
    are.

    Parameters
    ----------
    progress : StreamingQueryProgress, dict or str
        A listener's ``event.progress``, or ``query.lastProgress``; also as plain values, or as
        JSON.

    Returns
    -------
    StreamingQueryProgress, dict or None
        A ``StreamingQueryProgress`` for one, otherwise plain values, with nested offsets. None for
        None, which is ``lastProgress`` before the first batch.

    Raises
    ------
    TypeError
        ``progress`` is none of these.
    OffsetFormatError
        A newer release of this package made the progress.

    Examples
    --------
    >>> class LagGauges(StreamingQueryListener):  # doctest: +SKIP
    ...     def onQueryProgress(self, event):
    ...         for source in kafka_progress(event.progress).sources:
    ...             lag.set(float(source.metrics["maxOffsetsBehindLatest"]))
    """
    if progress is None:
        return None
    plain = as_dict(progress)
    sources = [_like_kafka(one) if is_ours(one) else one for one in plain["sources"]]
    plain["sources"] = sources
    if not hasattr(progress, "json"):
        return plain
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    told = StreamingQueryProgress.fromJson(plain)
    for source, given, before in zip(told.sources, sources, progress.sources, strict=True):
        for name in _OFFSETS:  # Spark 4.0 has them as Python prints them
            offset = given.get(name)
            text = json.dumps(offset, separators=(",", ":"))
            source[name] = text if isinstance(offset, (dict, list)) else before[name]
    return told


def _like_kafka(source: Mapping[str, Any]) -> dict[str, Any]:
    offsets = {name: plain_offset(source.get(name)) for name in _OFFSETS}
    latest = offsets["latestOffset"]
    if is_own(latest):  # Spark before 4.2 has the end of the batch there
        latest = None
    end = parse_offset(offsets["endOffset"])
    topics = {p.topic for p in end.positions()} | (latest or {}).keys()
    metrics = _metrics(end, latest or {})
    return {
        **source,
        "description": f"KafkaV2[Subscribe[{', '.join(sorted(topics))}]]",
        "startOffset": _positions(offsets["startOffset"]),
        "endOffset": _positions(offsets["endOffset"]),
        "latestOffset": latest,
        **({"metrics": {**source.get("metrics", {}), **metrics}} if metrics else {}),
    }


def _positions(offset: Any) -> Any:
    """Return only the positions of an offset of ours; any other offset as it is."""
    if not is_own(offset):
        return offset
    if OURS in offset:
        return {topic: by_number for topic, by_number in offset.items() if topic != OURS}
    return by_topic(parse_offset(offset).positions())


def _metrics(end: StreamOffset, latest: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """As ``KafkaMicroBatchStream.metrics``."""
    positions = end.positions()
    behind = []
    for topic, by_number in latest.items():
        for number, log_end in by_number.items():
            partition = TopicPartition(topic, int(number))
            if partition in positions:
                left = sum(gap.end - gap.start for gap in end.gaps.get(partition, ()))
                behind.append(max(0, log_end - positions[partition]) + left)
    if not behind:
        return {}
    tenths = (20 * sum(behind) + len(behind)) // (2 * len(behind))  # half up, as Spark rounds
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": f"{tenths // 10}.{tenths % 10}",
    }
