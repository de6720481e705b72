"""A Kafka client that a test leaves running is found, and which test it was."""

from __future__ import annotations

import pytest
from kafka.net.selector import NetworkSelector

from tests import left_threads


def test_the_thread_of_a_client_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_threads, "_PATIENCE_S", 0.0)
    assert left_threads.left_threads() == []
    net = NetworkSelector(client_id="forgotten")
    net.start()
    left_threads.note_threads("test_that_forgot")
    (left,) = left_threads.left_threads()
    assert left.startswith("kafka-io-forgotten, since test_that_forgot:")
    assert "selector.py" in left
    net.stop()
    net.close()
    assert left_threads.left_threads() == []
