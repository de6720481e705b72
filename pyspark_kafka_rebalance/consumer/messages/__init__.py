"""Messages that kafka-python does not have; read by its own codec from the JSON files here.

KIP-848: ConsumerGroupHeartbeat (API 68) v0-1, whose v1 has members make their own ids (KIP-1082)
and take topics by a regular expression, and ConsumerGroupDescribe (API 69) v0-1.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Join, stay in, or leave a group of the consumer protocol."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """The member epoch, and what is assigned when that changed."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Ask for groups of the consumer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """Each group's state, epochs and members, with what each member has and shall have."""
