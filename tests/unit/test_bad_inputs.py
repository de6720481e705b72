"""Bad inputs of users: each is one short error that names the culprit and what is allowed."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator, Mapping

import pytest
from bad_inputs import BAD_OFFSETS, BAD_OPTIONS, GOOD, GOOD_OFFSET, BadOffset, BadOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_rebalance.errors import KafkaRebalanceError, OffsetFormatError, OptionError
from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource
from pyspark_kafka_rebalance.source.offsets.offset_json import OURS, offset_to_json, parse_offset
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions

#: Fits a screen, whatever was given.
LONGEST_MESSAGE = 1_000


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    """A connection would be an error of its own, and the wait for one is what hangs."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an option was not refused before the network was touched")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


def changed(changes: Mapping[str, str | None]) -> dict[str, str]:
    """GOOD with changes, as Spark hands options over: with names in lower case."""
    options = {**GOOD, **changes}
    return {name.lower(): text for name, text in options.items() if text is not None}


def parse(changes: Mapping[str, str | None], of_batch: bool) -> SourceOptions:
    """As load() does."""
    options = SourceOptions.parse(changed(changes), default_readers=1)
    if (tls := options.client_config.get("ssl_context")) is not None:
        tls.context()
    return options.for_batch() if of_batch else options.for_stream()


def clear(error: KafkaRebalanceError) -> str:
    """The error's text, once it is sure that nothing from deep inside comes with it."""
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    message = str(error)
    problems = error.problems if isinstance(error, OptionError) else (error,)
    assert all(len(str(problem)) <= LONGEST_MESSAGE for problem in problems)
    assert len(message) <= LONGEST_MESSAGE * len(problems)
    assert "\n" not in message
    assert type(pickle.loads(pickle.dumps(error))) is type(error)
    return message


def test_there_are_enough_of_them() -> None:
    assert len(BAD_OPTIONS) >= 100
    assert len(BAD_OFFSETS) >= 50
    SourceOptions.parse(changed({}), default_readers=1)
    parse_offset(json.loads(GOOD_OFFSET))


@pytest.mark.parametrize("bad", BAD_OPTIONS, ids=lambda bad: f"{bad.changes}"[:60])
def test_a_bad_option_set_names_the_option_and_what_is_allowed(bad: BadOptions) -> None:
    with pytest.raises(OptionError) as raised:
        parse(bad.changes, bad.of_batch)
    message = clear(raised.value)
    assert raised.value.option.lower() == bad.named.lower()
    assert message.lower().startswith(f"option {bad.named!r} ".lower())
    assert bad.says in message


@pytest.mark.parametrize("bad", BAD_OFFSETS, ids=lambda bad: bad.line[:60])
def test_a_bad_offset_names_the_field(bad: BadOffset) -> None:
    with pytest.raises(OffsetFormatError) as raised:
        parse_offset(json.loads(bad.line))
    assert bad.named in clear(raised.value)


# What is near to good is likelier to be taken for good than what is just any text.
NAMES = st.sampled_from(sorted({name for bad in BAD_OPTIONS for name in bad.changes} | set(GOOD)))
TEXTS = st.sampled_from([t for bad in BAD_OPTIONS for t in bad.changes.values() if t is not None])


@settings(deadline=None)
@given(st.dictionaries(NAMES | st.text(max_size=30), TEXTS | st.text(max_size=30), max_size=5))
def test_any_options_are_taken_or_refused_with_an_option_error(options: dict[str, str]) -> None:
    for given_options in (options, {**GOOD, **options}):
        try:
            KafkaDeferredDataSource(changed(given_options))
        except OptionError as error:
            clear(error)
        try:
            parse(given_options, of_batch=True)
        except OptionError as error:
            clear(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["orders", "0", "1"]) | st.text(max_size=3), inner)
    ),
    max_leaves=8,
)

JSON_OPTIONS = [
    *("startingOffsets", "startingOffsetsByTimestamp", "assign"),
    *("endingOffsets", "endingOffsetsByTimestamp"),
]


@settings(deadline=None)
@given(JSON)
def test_any_json_of_partitions_is_taken_or_refused_with_an_option_error(value: object) -> None:
    for text in (json.dumps(value), json.dumps({"orders": value}), json.dumps(value)[:-1]):
        for name in JSON_OPTIONS:
            without = {"subscribe": None} if name == "assign" else {}
            try:
                KafkaDeferredDataSource(changed({**without, name: text}))
            except OptionError as error:
                clear(error)


FIELDS = st.sampled_from(["version", "ranges", "positions", "state", "read", "pending", OURS])
STATES = st.dictionaries(
    st.sampled_from(
        ["members", "revoking", "lost", "events", "run", "warm_up", "initial", "imported"]
    ),
    JSON,
    max_size=3,
)


@settings(deadline=None)
@given(st.dictionaries(FIELDS | st.text(max_size=3), JSON), STATES)
def test_any_offset_is_taken_or_refused_with_an_offset_format_error(
    changes: dict[str, object], state: dict[str, object]
) -> None:
    ours = {"version": 4, "read": {"orders": {"0": [2]}}, "state": state, **changes}
    for value in (
        changes,
        {**json.loads(GOOD_OFFSET), "state": state, **changes},
        {"orders": {"0": 5, "1": 7}, OURS: ours},
    ):
        try:
            offset = parse_offset(json.loads(json.dumps(value)))
        except OffsetFormatError as error:
            clear(error)
        else:
            # What is taken can be written and read again.
            assert parse_offset(offset_to_json(offset)) == offset
