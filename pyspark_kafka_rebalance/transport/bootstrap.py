"""The search for a first broker: each bootstrap server has its turn, and its error is kept.

kafka-python picks a server at random each time, and gives it all remaining time. So one server that
does not answer, behind a firewall for instance, could fail a client although the others would. Here
each server has its turn and a share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors

#: The least time for one server while others are left to be tried. The operating system sends a
#: lost first packet again after 1 s, and after 2 s more.
_ONE_SERVER_S = 3.5


class NoBrokerError(kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """No bootstrap server could be used; names the time spent and each server's last error."""

    __str__ = Exception.__str__


class Bootstrap:
    """Tracks the attempts of a search; without I/O. Reused for each search."""

    def __init__(self) -> None:
        self._began_at: float | None = None  # None: no search is running
        self._deadline: float | None = None
        self._failed: set[Any] = set()  # node ids, in this round
        self._met: dict[str, BaseException] = {}  # by server

    def begin(self, deadline: float | None) -> None:
        """Start a search that lasts until then (monotonic clock); None: until one is found."""
        self._began_at, self._deadline = time.monotonic(), deadline
        self._failed.clear()
        self._met.clear()

    def end(self) -> None:
        """End the search: until the next, no server is left out or given up sooner."""
        self._began_at = self._deadline = None
        self._failed.clear()

    def left_to_try(self, servers: Sequence[Any]) -> list[Any]:
        """Return the servers that have not failed in this round; all, if a new round starts."""
        left = [server for server in servers if server.node_id not in self._failed]
        if not left:
            self._failed.clear()
        return left or list(servers)

    def give_up_at(self, servers: Sequence[Any], timeout_at: float | None) -> float | None:
        """When the attempt that starts now must make room for the servers left to try."""
        if self._deadline is None or timeout_at is None:
            return timeout_at
        now = time.monotonic()
        share_s = (self._deadline - now) / len(self.left_to_try(servers))
        return min(timeout_at, now + max(_ONE_SERVER_S, share_s))

    def failed(self, server: Any, error: BaseException) -> None:
        """Note why an attempt of this search failed."""
        if self._began_at is not None:
            self._failed.add(server.node_id)
            self._met[f"{server.host}:{server.port}"] = error

    def error(self, config: Mapping[str, Any]) -> NoBrokerError:
        """Return the error of the current search, which has used up its time."""
        took_s = time.monotonic() - (self._began_at or 0.0)
        met = "; ".join(f"{server}: {_reason(error)}" for server, error in self._met.items())
        return NoBrokerError(
            f"none accepted this client within {round(took_s, 1):g} s with "
            f"security_protocol={config['security_protocol']} "
            f"({met or config['bootstrap_servers']})"
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return f"the answer is not a Kafka broker's, or the listener expects TLS: {error}"
    # "unable to connect", "Handshake failed: …", "111 ECONNREFUSED"
    of_network = type(error) is kafka_errors.KafkaConnectionError and error.args
    return str(error.args[0] if of_network else error)
