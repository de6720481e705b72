"""The argument ``bootstrap_servers`` of the Python clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from .values import items_of

_NAME = "bootstrap_servers"


def without_empty_servers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without the empty items of ``bootstrap_servers``, if it is given.

    kafka-python takes an empty item for this machine's port 9092; Java ignores it.

    Raises OptionError if no item is left.
    """
    if _NAME not in config:
        return dict(config)
    given = config[_NAME]
    listed = [given] if isinstance(given, str) else list(given or ())
    servers = [server for item in listed for server in items_of(item)]
    if not servers:
        raise OptionError(_NAME, given, "host:port, several in a list or separated by commas")
    return {**config, _NAME: servers}
