"""Messages that kafka-python does not have; its own codec reads them from the JSON files here.

KIP-848: ConsumerGroupHeartbeat (API 68) v0-1, whose v1 lets members make their own ids (KIP-1082)
and subscribe by a regular expression, and ConsumerGroupDescribe (API 69) v0-1.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Join, stay in, or leave a group of the consumer protocol."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """The member epoch, and the assignment when it changed."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Describe groups of the consumer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Each group's state, epochs and members, with each member's current and target assignment."""
