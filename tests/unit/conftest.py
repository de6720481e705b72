from __future__ import annotations

import pytest
from settable_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
