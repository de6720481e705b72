"""The names of the source's options: which it has, which have no effect, which are refused. Pure.

Spark's own source ignores every option that it does not know. Here one warning for each ``load()``
names the options without effect, with the reason. A misspelt option is refused, since its user
relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import OptionError
from ...settings.client_settings import ADMIN_SETTINGS, KNOWN_SETTINGS, PRODUCER_SETTINGS
from ...settings.misspelt import meant_by
from ...settings.problems import Problems
from ...settings.values import REDACTED

KAFKA = "kafka."

#: Known options that are refused, with the alternative or the reason.
_REFUSED_OPTIONS = {
    "includeFetchMetadata": "leave it out, because it is not supported yet",
    "headers": "use includeHeaders=true for a column with the headers",
}

#: Options that jobs set on Spark's own source, where they have no effect, and the reason here.
_NO_EFFECT = {
    "path": "topics are named by subscribe, subscribePattern or assign",
    "paths": "topics are named by subscribe, subscribePattern or assign",
    "topic": "it is an option of the sink; topics are named by subscribe",
    "inferSchema": "the columns are fixed",
    "header": "the columns are fixed",
    "mergeSchema": "the columns are fixed",
    "multiLine": "values are bytes",
    "mode": "values are bytes",
}
_NO_PREFIX = "Kafka's settings count with kafka. in front"
_UNKNOWN = "this source has no such option"


def without_effect(
    given: Mapping[str, str], own: tuple[str, ...], problems: Problems
) -> dict[str, str]:
    """Return the options that have no effect, each with the reason.

    ``given`` has all options, by lower-case name; Kafka's are checked elsewhere. ``own`` are this
    source's. The refused ones are added to ``problems``.
    """
    own_names = {name.lower() for name in own}
    refused = {name.lower(): name for name in _REFUSED_OPTIONS}
    ignored = {name.lower(): name for name in _NO_EFFECT}
    found = {}
    for name in sorted(given):
        if name in own_names:
            continue
        if name.startswith(KAFKA):
            _refuse_misplaced(name, own, problems)
            continue
        if name in refused:
            what_to_do = _REFUSED_OPTIONS[refused[name]]
            problems.add(OptionError(refused[name], given[name], what_to_do, problem="is refused"))
        elif name in ignored:
            found[ignored[name]] = _NO_EFFECT[ignored[name]]
        elif (meant := _meant(name, own, given)) is not None:
            # Redacted: a setting without its "kafka." prefix may well be a password.
            nearest = f"the nearest is {meant}"
            problems.add(OptionError(name, REDACTED, nearest, problem="is unknown"))
        else:
            found[name] = _NO_PREFIX if is_kafkas(name) else _UNKNOWN
    return found


def _refuse_misplaced(name: str, own: tuple[str, ...], problems: Problems) -> None:
    """Note it as a problem if an option of this source has ``kafka.`` in front."""
    rest = name.removeprefix(KAFKA)
    if not is_kafkas(rest) and (meant := meant_by(rest, own)) is not None:
        error = OptionError(name, REDACTED, f"the nearest is {meant}", problem="is unknown")
        problems.add(error)


def is_kafkas(name: str) -> bool:
    """Whether Kafka's clients have a setting of this name."""
    return name in KNOWN_SETTINGS | ADMIN_SETTINGS | PRODUCER_SETTINGS


def _meant(name: str, own: tuple[str, ...], given: Mapping[str, str]) -> str | None:
    """Return the option that was meant; None if the name resembles none."""
    servers = f"{KAFKA}bootstrap.servers"
    if f"{KAFKA}{name}" == servers and servers not in given:
        return servers
    if is_kafkas(name):
        return None
    if name.startswith("kafka") and (meant := meant_by(name, (KAFKA + n for n in KNOWN_SETTINGS))):
        return meant
    return meant_by(name, own)
