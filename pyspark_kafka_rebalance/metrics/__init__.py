"""OpenTelemetry metrics of consumers, producer groups and Spark queries, on request.

``observe(client)`` and ``metrics_listener()`` turn them on. Only these import OpenTelemetry, which
the extra ``otel`` installs. ``catalogue.py`` lists the instruments. ``member_events.py``,
``waiting.py`` and ``query_events.py`` decide which event adds how much to which instrument; they
are pure. Only ``instruments.py`` uses OpenTelemetry.
"""

from __future__ import annotations

from .listener import metrics_listener as metrics_listener
from .observation import Observation as Observation
from .observation import observe as observe

__all__ = ["Observation", "metrics_listener", "observe"]
