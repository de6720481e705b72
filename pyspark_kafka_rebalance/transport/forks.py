"""Forks: a child process leaves its parent's clients alone.

A forked child has copies of the parent's clients and none of their threads. It shares the parent's
sockets and the selector that waits for them. So a call that waits for the I/O thread would wait for
ever, and anything sent or closed would be sent and closed on the parent's behalf: a ``with`` block
that the child leaves must neither hang nor leave the group.

One hook serves all clients. It runs in the child, before ``fork()`` returns there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from kafka.errors import IllegalStateError

Client = TypeVar("Client")

_clients: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def leave_to_parent(client: Client, leave: Callable[[Client], None]) -> None:
    """Call ``leave(client)`` in every child that is forked while the client exists.

    It must not wait, take a lock, or touch a socket; it must not refer to the client otherwise.
    """
    _clients[client] = leave


def refuse(*arguments: object, **named: object) -> NoReturn:
    """Refuse a call, in place of a method that would wait for the parent's thread."""
    raise IllegalStateError(
        "this client was made in the parent process; a forked child has to make its own"
    )


def ignore(*arguments: object, **named: object) -> None:
    """Do nothing, in place of a method that would close the parent's resources."""


class RefusedLock:
    """Replaces a lock that a thread of the parent may hold: taking it raises."""

    def __enter__(self) -> NoReturn:
        refuse()

    def __exit__(self, *exception: object) -> None:
        pass


def _in_child() -> None:
    for client, leave in list(_clients.items()):
        leave(client)


os.register_at_fork(after_in_child=_in_child)
