"""PlannerMessage: how ``stop_gracefully`` reaches the planner, wherever the driver's host is.

Spark plans any Python data source on that host. This one delivers a message when Spark asks for its
schema, and has no rows. Each message starts a Python process, so this imports little.
"""

from __future__ import annotations

import json

from pyspark.sql.datasource import DataSource

from .stop_request import Answer, answer_of, ask_to_stop, give_up


class PlannerMessage(DataSource):
    """Runs on the driver's host when its schema is asked for; its one column names the answer."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "kafka_deferred_planner_message"

    def schema(self) -> str:
        """Deliver the message that the options hold; the name of the column is the answer."""
        return f"{self._deliver(self.options['run'])} BOOLEAN"

    def _deliver(self, run: str) -> Answer:
        if "give_up" in self.options:
            give_up(run)
        elif "proven" in self.options:
            ask_to_stop(
                run,
                json.loads(self.options["proven"]),
                float(self.options["stop_within_s"]),
                float(self.options.get("commit_within_s", "0")),  # a Connect client may be older
            )
        return answer_of(run)
