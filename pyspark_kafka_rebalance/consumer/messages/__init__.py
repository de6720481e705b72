"""Messages that kafka-python does not have; read by its own codec from the JSON files here.

ConsumerGroupHeartbeat (API 68) v0-1: KIP-848; from v1 on the member makes its own id (KIP-1082)
and topics may be given by a regular expression.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Join, stay in, or leave a group of the consumer protocol."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """The member epoch, and what is assigned when that changed."""
