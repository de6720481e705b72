"""An exception at the n-th place at which CPython looks for signals, as a signal handler raises it.

CPython calls signal handlers only after calls, at the start of functions and at jumps backward.
Only the consumer's own code and kafka-python's are interrupted, and not while an I/O loop runs,
which has a thread of its own outside of these tests.

A trace function can raise only at the instruction behind such a place. If that has another handler
(the end of an ``except`` block is outside of it), CPython would leave the block without ending it,
and the thread would have its exception for good, which no signal does. Such a place is left out.
"""

from __future__ import annotations

import dis
import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

_LOOKS_AFTER = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_LOOP = ("run_ready", "_poll_once", "advance", "run")


class Interruption:
    """Within it, the n-th such place raises.

    Parameters
    ----------
    at : int
        1 is the first.
    error : type of exception
        What is raised there.

    Attributes
    ----------
    raised : bool
        Whether there was an n-th place.
    where : str
        The place.
    """

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.raised = False
        self.where = "none"
        self._left = at
        self._error = error
        self._before: dict[int, tuple[str, int | None]] = {}
        self._in_loop = 0

    def __enter__(self) -> Interruption:
        assert sys.exc_info()[1] is None, "an earlier one has left an exception behind"
        self._former = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(self._former)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        name, code = frame.f_code.co_filename, frame.f_code
        if name.endswith(("simulated_kafka.py", "kafka/net/selector.py")) and (
            code.co_name in _LOOP
        ):
            self._in_loop += 1
            frame.f_trace_lines = False
            return self._loop
        if self._in_loop or self.raised or not _is_the_consumers(name):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._before[id(frame)] = "", None
        return self._step

    def _loop(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._in_loop -= 1
        return self._loop

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._before.pop(id(frame), None)
        elif event == "opcode" and not self._in_loop and not self.raised:
            before, handler = self._before.get(id(frame), ("", None))
            here = handler_at(frame.f_code, frame.f_lasti)
            self._before[id(frame)] = opname(frame.f_code, frame.f_lasti), here
            if before.startswith(_LOOKS_AFTER) and handler == here:
                self._left -= 1
                if self._left == 0:
                    self.raised = True
                    self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise self._error(self.where)
        return self._step


def _is_the_consumers(name: str) -> bool:
    return "pyspark_kafka_rebalance/" in name or "kafka/consumer/" in name


def opname(code: CodeType, at: int) -> str:
    return dis.opname[code.co_code[at]]


@cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """The first and the next instruction of each range with a handler, and its handler."""
    if sys.version_info < (3, 11):  # the handlers are on a stack, not in a table
        return []
    return [(e.start, e.end, e.target) for e in dis._parse_exception_table(code)]  # type: ignore[attr-defined]


def handler_at(code: CodeType, at: int) -> int | None:
    """The handler of what is raised at an instruction; None if it leaves the function."""
    return next((to for start, end, to in _handlers(code) if start <= at < end), None)
