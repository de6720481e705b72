"""AsyncDeferredRevokeConsumer is the same consumer: it has every public call and parameter."""

from __future__ import annotations

import inspect

from kafka import KafkaConsumer

from pyspark_kafka_rebalance import AsyncDeferredRevokeConsumer, DeferredRevokeConsumer

#: What has no counterpart, and why.
WITHOUT = {
    "bootstrap": "start",
    "commit_async": "commit in a task, or commit_processed",
    "poll_arrow": "AsyncTimestampOrderedRecords.poll_arrow; a poll here returns records",
    "poll_membership": "for applications without polls",
}
#: Parameters that have no meaning there.
WITHOUT_PARAMETERS = {
    ("poll", "update_offsets"),  # a poll's records are returned once
    ("close", "autocommit"),
}


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def documented() -> set[str]:
    """Calls of KafkaConsumer, and KIP-983's and our own that docs/consumer.md is about."""
    own = {
        "acknowledged",
        "catch_up_lag",
        "commit_processed",
        "current_lag",
        "delay_revoke",
        "drain",
        "get_lost_partitions",
        "get_to_be_revoked_partitions",
        "leave_until_polled",
        "poll_arrow",
        "poll_membership",
        "poll_with_rebalance",
        "processed",
        "unprocessed",
        "wakeup",
        "committed_offsets",
    }
    return {*public(KafkaConsumer), *own}


def test_no_call_is_missing_on_the_asyncio_face() -> None:
    ours, asynchronous = public(DeferredRevokeConsumer), public(AsyncDeferredRevokeConsumer)
    assert documented() <= ours.keys()
    assert documented() - asynchronous.keys() == WITHOUT.keys()


def test_calls_have_the_same_parameters_on_both_faces() -> None:
    ours, asynchronous = public(DeferredRevokeConsumer), public(AsyncDeferredRevokeConsumer)
    for name in documented() & asynchronous.keys():
        here = asynchronous[name].parameters
        for parameter in ours[name].parameters.values():
            if (name, parameter.name) in WITHOUT_PARAMETERS:
                continue
            assert parameter.name in here, f"{name} lacks {parameter.name}"
            assert here[parameter.name].kind is parameter.kind, f"{name}: {parameter.name}"
            assert here[parameter.name].default == parameter.default, f"{name}: {parameter.name}"
