"""Which kafka-python is supported: checked wherever its private names are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module

SUPPORTED_VERSIONS = ">=3.0.5,<3.1"


def require_supported_version() -> None:
    """Refuse any other version of kafka-python, before anything that only ours has is imported.

    Raises ImportError, which names the version found and the supported ones.
    """
    try:
        found: str = import_module("kafka").__version__
    except ImportError as error:  # not installed, or too old for this Python
        raise ImportError(
            f"kafka-python cannot be imported: {error}; install kafka-python{SUPPORTED_VERSIONS}"
        ) from error
    version = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if not (3, 0, 5) <= version < (3, 1):
        raise ImportError(
            f"kafka-python {found} is not supported; install kafka-python{SUPPORTED_VERSIONS}"
        )


def require_names(used: Mapping[type, Collection[str]]) -> None:
    """Refuse a kafka-python that lacks private names which a module uses.

    Parameters
    ----------
    used : mapping of type to names
        The names that the module uses, by class.

    Raises
    ------
    ImportError
        Names the version found, the supported ones, and every missing name.
    """
    missing = [
        f"{owner.__name__}.{name}"
        for owner, names in used.items()
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        raise ImportError(
            f"kafka-python {import_module('kafka').__version__} is not supported; "
            f"it lacks {', '.join(missing)}; install kafka-python{SUPPORTED_VERSIONS}"
        )
