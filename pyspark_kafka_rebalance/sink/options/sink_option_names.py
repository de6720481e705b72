"""The names of the sink's options: which it has, which have no effect, which are misspelt. Pure.

Spark's own sink ignores every option that it does not know; see the source's ``option_names``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import OptionError
from ...settings.client_settings import KNOWN_SETTINGS, PRODUCER_SETTINGS
from ...settings.misspelt import meant_by
from ...settings.problems import Problems
from ...settings.values import REDACTED
from ...source.options.option_names import KAFKA, is_kafkas

OWN_OPTIONS = (
    "topic",
    "delivery",
    "batchId",
    "checkpointLocation",
    "sinkTopic",
    "includeHeaders",
)

_KAFKAS = tuple(KAFKA + name for name in sorted(KNOWN_SETTINGS | PRODUCER_SETTINGS))

#: Options that jobs set on Spark's own sink or for its writers, and what is done here.
_NO_EFFECT = {
    "path": "topic names the topic",
    "queryName": "it is Spark's",
    "subscribe": "it is an option of the source; topic names the topic",
    "mergeSchema": "the columns are fixed",
}
_OF_SOURCE = (
    *("subscribePattern", "assign", "startingOffsets", "endingOffsets", "failOnDataLoss"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "groupIdPrefix"),
    *("shareGroup", "readers"),
)


def without_effect(given: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Return the options that have no effect, each with the reason.

    ``given`` has all options, by lower-case name; Kafka's are checked elsewhere. A misspelt one is
    added to ``problems``.
    """
    own = {name.lower() for name in OWN_OPTIONS}
    ignored = {name.lower(): (name, why) for name, why in _NO_EFFECT.items()}
    ignored |= {name.lower(): (name, "it is an option of the source") for name in _OF_SOURCE}
    found = {}
    for name in sorted(given):
        if name in own:
            continue
        if name in ignored:
            shown, why = ignored[name]
            found[shown] = why
        elif name.startswith(KAFKA):
            rest = name.removeprefix(KAFKA)
            if not is_kafkas(rest) and (meant := meant_by(rest, OWN_OPTIONS)) is not None:
                _add_unknown(name, meant, problems)
        elif (meant := _meant(name, given)) is not None:
            _add_unknown(name, meant, problems)
        elif is_kafkas(name):
            found[name] = "Kafka's settings count with kafka. in front"
        else:
            found[name] = "this sink has no such option"
    return found


def _add_unknown(name: str, meant: str, problems: Problems) -> None:
    # Redacted: a setting without its "kafka." prefix may well be a password.
    problems.add(OptionError(name, REDACTED, f"the nearest is {meant}", problem="is unknown"))


def _meant(name: str, given: Mapping[str, str]) -> str | None:
    """Return the option that was meant; None if the name resembles none."""
    servers = f"{KAFKA}bootstrap.servers"
    if f"{KAFKA}{name}" == servers and servers not in given:
        return servers
    if is_kafkas(name):
        return None
    if name.startswith("kafka") and (near := meant_by(name, _KAFKAS)):
        return near
    return meant_by(name, OWN_OPTIONS)
