"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0


def in_an_event_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        async def patiently() -> None:
            await asyncio.wait_for(test(*arguments, **fixtures), PATIENCE_S)

        asyncio.run(patiently())

    return run
