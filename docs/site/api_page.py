"""Write the API reference page: everything that the package exports, by room.

    python docs/site/api_page.py FILE

Its content is the docstrings: mkdocstrings puts them in the place of each ``:::``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark_kafka_rebalance as package
from pyspark_kafka_rebalance import metrics, testing

TITLES = {
    "source": "Spark",
    "consumer": "Consumers",
    "produce": "Producer",
    "producer": "Producer groups",
    "settings": "Settings",
    "fetch": "Ranges of offsets",
    "errors": "Errors",
}


def page() -> str:
    """Return Markdown, with headings that links can point to."""
    parts = ["# API reference", "What `pyspark_kafka_rebalance` exports, from its docstrings."]
    for room, title in TITLES.items():
        parts.append(f"## {title}")
        for name, module in package._PUBLIC.items():
            if module.partition(".")[0] == room:
                parts.append(f"::: {package.__name__}.{module}.{name}")
    parts += ["## Metrics", f"What `{metrics.__name__}` exports."]
    exported = (getattr(metrics, name) for name in metrics.__all__)
    parts += [f"::: {each.__module__}.{each.__name__}" for each in exported]
    parts += ["## For tests", f"What `{testing.__name__}` exports."]
    parts += [f"::: {testing.__name__}.{room}.{name}" for name, room in testing._PUBLIC.items()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
