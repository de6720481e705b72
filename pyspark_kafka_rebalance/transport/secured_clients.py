"""kafka-python's clients, made so that they name a broker's refusal at once and log no secret.

kafka-python retries a refused login until its bootstrap times out, and then does not report why.
Java's client fails with the first refusal, and so do these. This module touches kafka-python's
private names, because only here are connections made for both ``fetch/`` and ``consumer/``.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from ..errors import AuthenticationError, KafkaRebalanceError
from .admin_answers import AdminClient
from .bootstrap import Bootstrap
from .forks import ignore, leave_to_parent, refuse
from .kafka_python_version import require_names
from .large_reads import read_in_large_pieces
from .log_redaction import redact_log
from .log_repeats import log_repeats_once
from .recovery import recover_by_bootstrap

require_names(
    {
        KafkaConnectionManager: (
            *("_connect", "_do_bootstrap", "maybe_raise_auth_failure", "bootstrap"),
        ),
        NetworkSelector: ("stop", "run", "call_soon_with_future", "poll", "close"),
        KafkaConnection: ("connection_lost", "init_future"),
        ClusterMetadata: ("bootstrap_brokers", "is_bootstrap"),
    }
)


class LoginRefusedError(AuthenticationError, kafka_errors.SaslAuthenticationFailedError):  # type: ignore[misc]
    """An AuthenticationError that kafka-python's own code recognises as one of its errors."""

    __str__ = Exception.__str__


#: A broker's answers to a login that will not succeed the next time either.
_SASL_REFUSALS = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)

#: Timeout for ending the I/O thread, which has nothing to wait for then.
_END_MS = 5_000

#: TLS ended without a verdict: the network, or a broker that stops.
_TLS_INTERRUPTIONS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def admin_client(client_config: Mapping[str, Any]) -> KafkaAdminClient:
    """Return an admin client.

    Raises AuthenticationError if a broker refuses the login, NoBrokerError if none can be reached.
    """
    redact_log()
    log_repeats_once()
    # By itself kafka-python tries to reach a first broker for half a minute, whatever the timeout.
    default_ms = KafkaAdminClient.DEFAULT_CONFIG["request_timeout_ms"]
    wait_ms = client_config.get("request_timeout_ms", default_ms)
    return AdminClient(
        **{"bootstrap_timeout_ms": wait_ms, **client_config}, kafka_client=net_client
    )


def net_client(**config: Any) -> KafkaNetClient:
    """Make a client for the argument ``kafka_client`` of kafka-python's clients.

    Topics are created by metadata requests only as ``allow_auto_create_topics`` says, which
    kafka-python does not pass on (KIP-361), and never by admin clients.
    """
    client = KafkaNetClient(**config)
    allowed = bool(config.get("allow_auto_create_topics", False))
    client.cluster.config["allow_auto_create_topics"] = allowed
    prepare_connections(client._manager)
    _end_if_not_let_in(client)
    leave_to_parent(client, _leave_loop_to_parent)
    return client


def _leave_loop_to_parent(client: KafkaNetClient) -> None:
    """In a forked child: nothing runs on this I/O loop, and nothing of it is closed.

    The child would change the selector of its parent.
    """
    net = client._net
    net.run = net.call_soon_with_future = net.poll = refuse
    net.stop = net.close = client.close = ignore


def _end_if_not_let_in(client: KafkaNetClient) -> None:
    """Close the client if its first bootstrap fails: that of a constructor, which then raises.

    kafka-python leaves the I/O thread and its sockets behind, without an object to close.
    """
    manager = client._manager
    bootstrap = manager.bootstrap
    # With api_version the constructor needs no bootstrap: a later one is of a client in use.
    has_been_let_in = manager.config["api_version"] is not None

    def bootstrap_or_end(*arguments: Any, **named: Any) -> None:
        nonlocal has_been_let_in
        try:
            bootstrap(*arguments, **named)
        except BaseException:
            if not has_been_let_in:
                manager._net.stop(timeout_ms=_END_MS)
                client.close()
            raise
        has_been_let_in = True

    manager.bootstrap = bootstrap_or_end


def prepare_connections(manager: KafkaConnectionManager) -> None:
    """Make connections that this manager opens from now on name refusals and read fast.

    If none of its brokers answers any more, it bootstraps again.
    """
    _name_refusals(manager)
    read_in_large_pieces(manager)
    recover_by_bootstrap(manager)


def _name_refusals(manager: KafkaConnectionManager) -> None:
    """Make connections that this manager opens from now on fail with the first refusal.

    If a login is refused, requests on the connection end in `LoginRefusedError`, which names broker
    and mechanism, and so does the bootstrap. A bootstrap tries every server, and names each one's
    error if it times out. Needs `read_in_large_pieces` as well, which does not drop the broker's
    answer.
    """
    redact_log()
    log_repeats_once()
    connect, bootstrap = manager._connect, manager._do_bootstrap
    is_bootstrap, servers = manager.cluster.is_bootstrap, manager.cluster.bootstrap_brokers
    refused: list[LoginRefusedError] = []
    attempt = Bootstrap()
    under_way: Future | None = None

    async def named_connect(node: Any, connection: Any, *arguments: Any, **named: Any) -> None:
        lost = connection.connection_lost
        if is_bootstrap(node.node_id):
            named["timeout_at"] = attempt.give_up_at(servers(), named.get("timeout_at"))

        def connection_lost(error: Exception | None) -> None:
            if error is not None:
                broker, new = f"{node.host}:{node.port}", not connection.init_future.is_done
                error = _refusal(error, manager.config, broker, new) or error
                if is_bootstrap(node.node_id):
                    attempt.failed(node, error)
                    # kafka-python only logs the refusal of a bootstrap attempt; it is raised below.
                    if isinstance(error, LoginRefusedError):
                        refused[:] = [error]
            lost(error)

        connection.connection_lost = connection_lost
        await connect(node, connection, *arguments, **named)

    async def named_bootstrap(deadline: float | None) -> Any:
        attempt.begin(deadline)
        refused.clear()
        try:
            return await bootstrap(deadline)
        except kafka_errors.KafkaTimeoutError as error:
            raise attempt.error(manager.config) from error
        finally:
            attempt.end()

    async def one_bootstrap(deadline: float | None) -> Any:
        """Two at once would wait in one place of kafka-python, which refuses that."""
        nonlocal under_way
        if under_way is not None:
            return await under_way
        under_way = Future()
        try:
            found = await named_bootstrap(deadline)
        except BaseException as error:
            under_way.failure(error)
            raise
        else:
            under_way.success(found)
            return found
        finally:
            under_way = None

    def raise_refusal(node_id: Any) -> None:
        if refused and is_bootstrap(node_id):
            raise refused.pop()

    manager.cluster.bootstrap_brokers = lambda: attempt.left_to_try(servers())
    manager._connect = named_connect
    manager._do_bootstrap = one_bootstrap
    # Called before each attempt: the bootstrap passes this error on, but continues after others.
    manager.maybe_raise_auth_failure = raise_refusal


def _refusal(
    error: Exception, config: Mapping[str, Any], broker: str, new: bool
) -> LoginRefusedError | None:
    """Return the error for a connection that was refused for good; None for any other failure.

    SASL can also refuse a connection that is in use, when it logs in again (KIP-368).
    """
    if isinstance(error, LoginRefusedError):
        return error
    if isinstance(error, KafkaRebalanceError):  # ours, from preparing an answer for the broker
        return LoginRefusedError(f"{error} (for broker {broker})")
    if isinstance(error, _SASL_REFUSALS):
        reason = str(error.args[0]) if error.args else type(error).__name__
        return LoginRefusedError(
            f"broker {broker} refuses the login by {config['sasl_mechanism']}: {reason}"
        )
    for cause in (error, *error.args, error.__context__):
        if new and isinstance(cause, ssl.SSLError) and not isinstance(cause, _TLS_INTERRUPTIONS):
            return LoginRefusedError(
                f"no TLS with broker {broker} ({config['security_protocol']}): {_tls_reason(cause)}"
            )
    return None


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = f"{error.reason or error}"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"it rejects this client's certificate, or requires one: {reason}"
    return reason
