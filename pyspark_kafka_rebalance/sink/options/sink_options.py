"""SinkOptions: the user's options, parsed and checked once, before any network access.

Options that Spark's Kafka sink also has keep their names and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...errors import OptionError
from ...settings.names import is_topic_name
from ...settings.problems import Problems
from ...settings.producer_settings import WriterSettings, map_producer_settings
from ...settings.values import BOOLEAN, LONG_MAX, ValueType, integer, one_of, parse_value
from ...source.checkpoint.checkpoint_files import parse_location
from ...source.options.option_names import KAFKA
from .sink_option_names import without_effect

if TYPE_CHECKING:
    from ...produce.encoder.settings import EncoderSettings

Delivery = Literal["exactly_once", "at_least_once"]

#: Where the batches that are written are noted; ``sinkTopic`` names another.
MARKER_TOPIC = "__kafka_deferred_sink"


def _topic_name(text: str) -> str:
    if not is_topic_name(text):
        raise ValueError
    return text


_TOPIC = ValueType(_topic_name, "1 to 249 ASCII letters, digits, '.', '_' and '-'")
_DELIVERY = one_of("exactly_once", "at_least_once", ignore_case=True)
_NO_SETTINGS = WriterSettings({}, {}, None, {})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one sink. ``repr()`` leaves out possible secrets.

    Attributes
    ----------
    topic : str, optional
        Of all records; None: the column ``topic`` names it.
    delivery : "exactly_once" or "at_least_once"
        Exactly once by default, and for a batch that is written without ``batchId`` at least once.
    batch_id : int, optional
        The micro-batch that a batch write is part of, in foreachBatch.
    checkpoint_location : str, optional
        Parsed: an absolute path, or a URI that may contain keys.
    marker_topic : str
        The compacted topic that notes the batches that are written.
    client : dict
        kafka-python's arguments of every connection.
    producer : dict
        Those of a producer in addition to ``client``; only the user's.
    compression_level : int, optional
    given : frozenset of str
        The names of the given options, in lower case.
    without_effect : dict of str to str
        Given options that change nothing, and the reasons.
    """

    topic: str | None
    delivery: Delivery
    batch_id: int | None
    checkpoint_location: str | None = field(repr=False)
    marker_topic: str
    client: Mapping[str, Any] = field(repr=False, hash=False)
    producer: Mapping[str, Any] = field(hash=False)
    compression_level: int | None
    given: frozenset[str]
    without_effect: Mapping[str, str] = field(hash=False)

    @property
    def producer_config(self) -> dict[str, Any]:
        """The arguments of a `Producer`."""
        return {**self.client, **self.producer}

    @property
    def encoder(self) -> EncoderSettings:
        """The settings of what the tasks encode: those that a `Producer` has with the same."""
        from ...produce.producer_settings import ProducerSettings

        settings = ProducerSettings.checked(None, self.producer_config).delivery.encoder
        return replace(settings, level=self.compression_level)

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse and check the options, as Spark passes them: the case of a name is ignored.

        They suit a stream or a batch: see `for_stream` and `for_batch`.

        Raises
        ------
        OptionError
            One is missing, misspelt, refused, or has a bad value; names all of them.
        """
        given = {name.lower(): value for name, value in options.items()}
        problems = Problems()
        ignored = without_effect(given, problems)
        kafka = {n.removeprefix(KAFKA): v for n, v in given.items() if n.startswith(KAFKA)}
        settings = problems.of(partial(map_producer_settings, kafka), _NO_SETTINGS)
        ignored |= {KAFKA + name: why for name, why in settings.without_effect.items()}

        def value(name: str, value_type: ValueType, default: Any = None) -> Any:
            text = given.get(name.lower())
            if text is None:
                return default
            return problems.of(partial(parse_value, name, text, value_type), default)

        value("includeHeaders", BOOLEAN)
        checkpoint = given.get("checkpointlocation")
        parsed = cls(
            topic=value("topic", _TOPIC),
            delivery=value("delivery", _DELIVERY, "exactly_once"),
            batch_id=value("batchId", integer(0, LONG_MAX)),
            checkpoint_location=problems.of(
                lambda: parse_location(checkpoint) if checkpoint is not None else None, None
            ),
            marker_topic=value("sinkTopic", _TOPIC, MARKER_TOPIC),
            client=settings.client,
            producer=settings.producer,
            compression_level=settings.compression_level,
            given=frozenset(given),
            without_effect=ignored,
        )
        if parsed.topic is not None and parsed.topic == parsed.marker_topic:
            allowed = f"another topic than sinkTopic, which is {parsed.marker_topic}"
            problems.add(OptionError("topic", parsed.topic, allowed))
        problems.raise_if_any()
        return parsed

    def for_stream(self) -> SinkOptions:
        """Return these options, checked for a stream; raises OptionError."""
        if self.batch_id is not None:
            what_to_do = "leave it out, Spark gives a stream's batches their numbers"
            problem = "is for writes in foreachBatch only"
            raise OptionError("batchId", None, what_to_do, problem=problem)
        return self

    def for_batch(self) -> SinkOptions:
        """Return these options, checked for a batch write; raises OptionError.

        It is at least once, unless a number tells the same write when it comes again.
        """
        if self.batch_id is not None:
            return self
        if "delivery" in self.given and self.delivery == "exactly_once":
            allowed = (
                "at_least_once, unless batchId gives the number of the micro-batch in foreachBatch"
            )
            raise OptionError("delivery", self.delivery, allowed)
        return replace(self, delivery="at_least_once")
