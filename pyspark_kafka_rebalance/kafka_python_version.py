"""Which kafka-python is supported, checked where its private names are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import kafka

SUPPORTED_VERSIONS = ">=3.0.5,<3.1"


def require_kafka_python(used: Mapping[type, Collection[str]]) -> None:
    """Refuse a kafka-python whose private names are not the ones that a module uses.

    Parameters
    ----------
    used : mapping of type to names
        What the module touches, by the class that has it.

    Raises
    ------
    ImportError
        Names the version found, what is supported, and every name that is missing.
    """
    version = tuple(int(part) for part in kafka.__version__.split(".")[:3] if part.isdigit())
    missing = [
        f"{owner.__name__}.{name}"
        for owner, names in used.items()
        for name in names
        if not hasattr(owner, name)
    ]
    if not (3, 0, 5) <= version < (3, 1) or missing:
        lacks = f"; it lacks {', '.join(missing)}" if missing else ""
        raise ImportError(
            f"kafka-python {kafka.__version__} is not supported{lacks}; "
            f"install kafka-python{SUPPORTED_VERSIONS}"
        )
