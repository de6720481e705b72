"""The JSON in which Spark's options name partitions: ``{"orders":{"0":23}}``, ``{"orders":[0,2]}``.

Every ``ValueError`` here says what is wrong; an OptionError quotes it at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...settings.names import is_topic_name
from ...settings.values import INT_MAX, LONG_MAX

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

_LONGEST_NUMBER = 20  # characters; a long has at most 19 digits, and a sign


def parse_numbers(
    text: str, subscribes: Callable[[str], bool], lowest: int, what: str
) -> dict[TopicPartition, int]:
    """Parse a number for each partition: ``{"orders":{"0":23}}``.

    The smallest number allowed is ``lowest``, the largest that of a Java long. ``what`` the numbers
    are is for the error. Raises ValueError; says what is wrong.
    """
    from kafka.structs import TopicPartition  # late: few queries name partitions

    numbers = {}
    for topic, partitions in _topics(text):
        if not isinstance(partitions, dict) or not partitions:
            raise ValueError(f"topic {topic!r} does not map partitions to {what}s")
        if not subscribes(topic):
            raise ValueError(f"topic {topic!r} is not subscribed to")
        for partition, number in partitions.items():
            if not re.fullmatch("0|[1-9][0-9]{0,9}", partition) or int(partition) > INT_MAX:
                raise ValueError(f"topic {topic!r}: {partition!r} is not a partition number")
            # A bool is an int in Python, but not in JSON.
            if type(number) is not int or not lowest <= number <= LONG_MAX:
                raise ValueError(f"partition {topic}-{partition}: {number!r} is not a valid {what}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Parse lists of partitions: ``{"orders":[0,2]}``, in order and without duplicates.

    Raises ValueError; says what is wrong.
    """
    from kafka.structs import TopicPartition

    partitions = set()
    for topic, listed in _topics(text):
        if not is_topic_name(topic):
            raise ValueError(f"{topic!r} is not a topic name")
        if not isinstance(listed, list) or not listed:
            raise ValueError(f"topic {topic!r} does not list partitions")
        for partition in listed:
            if type(partition) is not int or not 0 <= partition <= INT_MAX:
                raise ValueError(f"topic {topic!r}: {partition!r} is not a partition number")
            partitions.add(TopicPartition(topic, partition))
    return tuple(sorted(partitions))


def _topics(text: str) -> Iterator[tuple[str, Any]]:
    topics = _parse_json(text)
    if not isinstance(topics, dict) or not topics:
        raise ValueError("not an object that maps topics to partitions")
    yield from topics.items()


def _parse_json(text: str) -> Any:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # By default json keeps the last of two, and the user never learns of the other.
        unique: dict[str, Any] = {}
        for name, value in pairs:
            if name in unique:
                raise ValueError(f"{name!r} occurs twice")
            unique[name] = value
        return unique

    def of_few_digits(digits: str) -> int:
        # int() limits the length of its input, but its error explains that in Python's terms.
        if len(digits) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(digits)} digits")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=without_duplicates, parse_int=of_few_digits)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
