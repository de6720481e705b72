"""One member of the group in its own process, for the clients written in Python."""

from __future__ import annotations

import json
import logging
import sys
import threading
from importlib import import_module
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import orders, tell

from .application import Application


def main(member: dict[str, Any]) -> None:
    """Join on "go", then consume until "stop" on standard input or until standard input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    client = import_module(f"{__package__}.clients.{member['client']}")
    tell("ready", version=client.version())
    given = orders()
    if next(given) == "stop":
        return
    application = Application(member)

    def obey() -> None:
        while next(given) != "stop":
            pass
        application.stopping.set()

    threading.Thread(target=obey, daemon=True).start()
    client.consume(member, application)
    tell("stopped")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
