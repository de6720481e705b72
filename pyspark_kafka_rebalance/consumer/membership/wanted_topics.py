"""WantedTopics: the subscription that a member of the consumer protocol sends (KIP-848).

The member sends names, or a regular expression that the coordinator matches. If brokers cannot
match it, or would match what the application must not see, the member sends the names that match
here instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..messages import ConsumerGroupHeartbeatRequest
from .topic_patterns import broker_pattern, matches_internal_topics

if TYPE_CHECKING:
    from ..kafka_python.io_loop import IoLoop
    from ..kafka_python.subscription import Subscription
    from ..kafka_python.topic_metadata import TopicMetadata

#: ConsumerGroupHeartbeat v1 has the regular expression.
_PATTERN_VERSION = 1


class Wanted(NamedTuple):
    """Topics by name, or a pattern for the broker to match."""

    topics: frozenset[str]
    pattern: str | None


class WantedTopics:
    """What is subscribed to, and what the coordinator knows of that.

    Parameters
    ----------
    loop : IoLoop
        Knows what the brokers understand.
    metadata : TopicMetadata
        Knows which topics are internal.
    subscription : Subscription
        What the application has subscribed to.
    exclude_internal_topics : bool
        Whether a pattern leaves out the brokers' internal topics.
    """

    def __init__(
        self,
        loop: IoLoop,
        metadata: TopicMetadata,
        subscription: Subscription,
        exclude_internal_topics: bool,
    ) -> None:
        self._loop = loop
        self._metadata = metadata
        self._subscription = subscription
        self._exclude_internal_topics = exclude_internal_topics
        self._told: Wanted | None = None
        self._unreadable: str | None = None

    def now(self) -> Wanted:
        """What to send now."""
        pattern = self._subscription.pattern
        if (
            pattern is None
            or pattern == self._unreadable
            or not self._tells_patterns()
            or (
                self._exclude_internal_topics
                and matches_internal_topics(pattern, self._metadata.internal_topics)
            )
        ):
            return Wanted(self._subscription.topics, None)
        return Wanted(frozenset(), broker_pattern(pattern))

    def is_told(self, wanted: Wanted) -> bool:
        """Whether the coordinator knows that this is wanted."""
        return wanted == self._told

    def told(self, wanted: Wanted) -> None:
        """Note that the coordinator has accepted this."""
        self._told = wanted

    def match_here(self) -> str | None:
        """Match the current pattern here, since the broker cannot parse it; return the pattern."""
        self._unreadable = self._subscription.pattern
        return self._unreadable

    def fields(self, wanted: Wanted) -> dict[str, Any]:
        """The heartbeat fields for this subscription."""
        fields: dict[str, Any] = {"subscribed_topic_names": sorted(wanted.topics)}
        if self._tells_patterns():
            fields["subscribed_topic_regex"] = wanted.pattern or ""
        return fields

    def _tells_patterns(self) -> bool:
        return self._loop.api_version(ConsumerGroupHeartbeatRequest) >= _PATTERN_VERSION
