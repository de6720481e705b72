"""OpenTelemetry metrics of consumers, producer groups and Spark queries, for those who ask.

``observe(client)`` and ``metrics_listener()``; only these import OpenTelemetry, which the extra
``otel`` installs. ``catalogue.py`` lists the instruments. Which event adds what to which of them is
decided in ``member_events.py``, ``waiting.py`` and ``query_events.py``, which are pure, and only
``instruments.py`` uses OpenTelemetry.
"""

from __future__ import annotations

from .listener import metrics_listener as metrics_listener
from .observation import Observation as Observation
from .observation import observe as observe

__all__ = ["Observation", "metrics_listener", "observe"]
