"""The settings of the Python clients, each with its type. For type checkers and IDEs; pure.

The clients' keyword arguments have these types. At run time they are plain dicts: nothing here
checks a value. ``tests/unit/test_typed_settings.py`` compares the names with the clients'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from selectors import BaseSelector
    from ssl import SSLContext

    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.serializer import Deserializer, Serializer

GroupProtocolName = Literal["classic", "consumer", "auto"]
ParallelRebalance = Literal["live", "ordered"]


class _OfEveryClient(TypedDict, total=False):
    """kafka-python's settings that its consumer and its producer share."""

    allow_auto_create_topics: bool
    api_version: tuple[int, ...] | None
    bootstrap_servers: str | Sequence[str]
    bootstrap_timeout_ms: int
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    client_id: str
    connections_max_idle_ms: int
    max_in_flight_requests_per_connection: int
    metadata_max_age_ms: int
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: int
    proxy_url: str | None
    receive_buffer_bytes: int | None
    receive_message_max_bytes: int
    reconnect_backoff_max_ms: int
    reconnect_backoff_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_name: Any  # a str or a gssapi.Name
    sasl_kerberos_service_name: str
    sasl_mechanism: str | None
    sasl_oauth_token_provider: AbstractTokenProvider | None
    sasl_plain_password: str | None
    sasl_plain_username: str | None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    send_buffer_bytes: int | None
    socket_options: Sequence[tuple[int, int, int | bytes]]
    socks5_proxy: str | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_check_hostname: bool
    ssl_ciphers: str | None
    ssl_context: SSLContext | None
    ssl_crlfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None


class _OfEveryMember(_OfEveryClient, total=False):
    """kafka-python's consumer settings that each member of a group takes, producers too."""

    auto_commit_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "none"]
    check_crcs: bool
    client_rack: str
    consumer_timeout_ms: float
    default_offset_commit_callback: Callable[[Any, Any], object]
    enable_incremental_fetch_sessions: bool
    exclude_internal_topics: bool
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_instance_id: str | None
    heartbeat_interval_ms: int
    kafka_client: Callable[..., Any]
    key_deserializer: Callable[[bytes], Any] | Deserializer | None
    max_partition_fetch_bytes: int
    max_poll_records: int
    metric_group_prefix: str
    metric_reporters: Sequence[Callable[[], Any]]
    selector: Callable[[], BaseSelector]
    session_timeout_ms: int
    value_deserializer: Callable[[bytes], Any] | Deserializer | None


class KafkaConsumerSettings(_OfEveryMember, total=False):
    """The keyword arguments of a ``DeferredRevokeConsumer`` that are not in its signature."""

    enable_auto_commit: Literal[False]
    group_id: str
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_poll_interval_ms: int


class ConsumerSettings(KafkaConsumerSettings, total=False):
    """All settings of a ``DeferredRevokeConsumer``: kafka-python's and this package's.

    For settings that are kept in one place::

        settings = ConsumerSettings(group_id="g", bootstrap_servers="127.0.0.1:9092")
        consumer = DeferredRevokeConsumer("orders", **settings)
    """

    catch_up_threshold: int | None
    catch_up_threshold_ms: int | None
    defer_revoke: bool
    enable_parallel_rebalance: bool
    group_protocol: GroupProtocolName
    group_remote_assignor: str | None
    parallel_rebalance: ParallelRebalance | None
    revoke_timeout_ms: int | None


class ProducerSettings(_OfEveryClient, total=False):
    """All settings of a ``Producer``: kafka-python's and ``buffer_memory``.

    Its transactional id is an argument.
    """

    acks: Literal["all", -1]
    batch_size: int
    buffer_memory: int
    compression_type: Literal["gzip", "snappy", "lz4", "zstd", "none"] | None
    delivery_timeout_ms: float
    enable_idempotence: Literal[True]
    key_serializer: Callable[[Any], bytes] | Serializer | None
    linger_ms: int
    max_block_ms: int
    max_request_size: int
    retries: float
    transaction_timeout_ms: int
    value_serializer: Callable[[Any], bytes] | Serializer | None


class ProducerGroupSettings(_OfEveryMember, total=False):
    """All settings of a ``ProducerGroup``: kafka-python's and this package's.

    Its group and the number of source partitions are arguments.
    """

    batch_size: int
    buffer_memory: int
    commit_interval_ms: int | None
    commit_records: int | None
    compression_type: Literal["gzip", "snappy", "lz4", "zstd"] | None
    delivery_timeout_ms: float
    group_protocol: GroupProtocolName
    group_remote_assignor: str | None
    key_serializer: Callable[[Any], bytes] | Serializer | None
    linger_ms: int
    max_block_ms: int
    max_request_size: int
    restart_topic: str | None
    retries: float
    revoke_timeout_ms: int | None
    transaction_timeout_ms: int | None
    value_serializer: Callable[[Any], bytes] | Serializer | None
