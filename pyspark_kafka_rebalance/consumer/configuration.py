"""The configuration of a DeferredRevokeConsumer, checked before any network is touched."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer

from ..errors import OptionError
from ..settings.bootstrap_servers import without_empty_servers

#: kafka-python's default, like Java's, is 3 s. A hand-over takes about one heartbeat interval.
CONSUMER_HEARTBEAT_INTERVAL_MS = 1_000

_GROUP_PROTOCOLS = ("classic", "consumer", "auto")


def checked_config(
    config: dict[str, Any],
    group_protocol: str,
    group_remote_assignor: str | None,
    revoke_timeout_ms: int | None,
) -> dict[str, Any]:
    """kafka-python's configuration with our defaults filled in; OptionError if it cannot work."""
    if not config.get("group_id"):
        raise OptionError("group_id", config.get("group_id"), "the name of the consumer group")
    if group_protocol not in _GROUP_PROTOCOLS:
        raise OptionError(
            "group_protocol", group_protocol, " or ".join(map(repr, _GROUP_PROTOCOLS))
        )
    if group_remote_assignor is not None and group_protocol == "classic":
        raise OptionError(
            "group_remote_assignor",
            group_remote_assignor,
            "no value with group_protocol='classic', because the group leader's assignor decides",
        )
    if config.get("enable_auto_commit"):
        raise OptionError(
            "enable_auto_commit", True, "False: only commit_processed knows what is processed"
        )
    if "partition_assignment_strategy" in config:
        raise OptionError(
            "partition_assignment_strategy",
            config["partition_assignment_strategy"],
            "no value: every member uses cooperative-sticky",
        )
    limit = config.get("max_poll_interval_ms", KafkaConsumer.DEFAULT_CONFIG["max_poll_interval_ms"])
    if revoke_timeout_ms is not None and not 0 < revoke_timeout_ms <= limit:
        raise OptionError(
            "revoke_timeout_ms", revoke_timeout_ms, f"1 to max_poll_interval_ms={limit}"
        )
    session = config.get("session_timeout_ms", 45_000)
    interval = config.setdefault(
        "heartbeat_interval_ms", min(CONSUMER_HEARTBEAT_INTERVAL_MS, session // 3)
    )
    if not 0 < interval < session:
        raise OptionError(
            "heartbeat_interval_ms",
            interval,
            f"at least 1 and less than session_timeout_ms={session}",
        )
    return without_empty_servers({**config, "enable_auto_commit": False})
