"""The typed settings have the names that the clients accept at run time, and no others.

`tests/typed_usage.py` shows what type checkers make of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConfigurationError

from pyspark_kafka_rebalance import (
    ConsumerSettings,
    DeferredRevokeConsumer,
    ProducerGroupSettings,
)
from pyspark_kafka_rebalance import ProducerSettings as TypedProducerSettings
from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.produce.producer_settings import ProducerSettings
from pyspark_kafka_rebalance.producer.options import ProducerOptions


class AcceptedError(Exception):
    """Raised in the place of the first access to the network."""


def no_network(**_: Any) -> Any:
    raise AcceptedError


def accepts(client: Callable[..., Any], settings: dict[str, Any]) -> bool:
    try:
        client(**{**settings, "kafka_client": no_network})
    except AcceptedError:
        return True
    except (OptionError, KafkaConfigurationError):
        return False
    raise AssertionError("a client without a network")


def group_accepts(settings: dict[str, Any]) -> bool:
    try:
        options = ProducerOptions.checked("g", 3, **settings)
    except OptionError:
        return False
    # What these refuse is refused by `subscribe`, too late.
    producer = dict(options.producer)
    ProducerSettings.checked(producer.pop("transactional_id"), producer)
    assert accepts(DeferredRevokeConsumer, options.member)
    return True


def keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in keywords(function).items()}


def test_a_consumer_takes_the_settings_that_are_typed_and_no_others() -> None:
    typed = ConsumerSettings.__annotations__
    values = dict.fromkeys(typed) | KafkaConsumer.DEFAULT_CONFIG
    values |= defaults(DeferredRevokeConsumer.__init__)
    group = {"group_id": "g"}
    values |= {**group, "enable_auto_commit": False}
    taken = {n for n in values if accepts(DeferredRevokeConsumer, {**group, n: values[n]})}
    assert taken == set(typed)


def test_a_producer_group_takes_the_settings_that_are_typed_and_no_others() -> None:
    typed = ProducerGroupSettings.__annotations__
    values = dict.fromkeys(typed) | KafkaConsumer.DEFAULT_CONFIG | KafkaProducer.DEFAULT_CONFIG
    values |= defaults(DeferredRevokeConsumer.__init__) | defaults(ProducerOptions.checked)
    values["buffer_memory"] = 1_000_000  # of our producer alone
    del values["group_id"]  # its first argument
    assert {name for name in values if group_accepts({name: values[name]})} == set(typed)


def test_a_producer_takes_the_settings_that_are_typed_and_no_others() -> None:
    typed = TypedProducerSettings.__annotations__
    values = dict.fromkeys(typed) | KafkaConsumer.DEFAULT_CONFIG | KafkaProducer.DEFAULT_CONFIG
    values |= {"buffer_memory": 1_000_000, "acks": "all"}
    del values["transactional_id"]  # its first argument

    def is_accepted(name: str) -> bool:
        try:
            ProducerSettings.checked("id", {name: values[name]})
        except OptionError:
            return False
        return True

    assert {name for name in values if is_accepted(name)} == set(typed)


def test_the_consumers_own_settings_have_the_types_of_its_signature() -> None:
    own = keywords(DeferredRevokeConsumer.__init__)
    assert "group_protocol" in own
    for name, parameter in own.items():
        assert ConsumerSettings.__annotations__[name].__forward_arg__ == parameter.annotation
