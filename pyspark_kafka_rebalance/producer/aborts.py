"""Aborts: which authors are still to be told that their records were aborted; pure.

Several authors (the tasks of an event loop) send in one transaction. When it is aborted, each of
them must send its records again, from the restart points on. An author that does not know of the
abort would send its next records behind a gap, and the next restart point would turn that gap into
a loss.

Invariants:
 1. Every author that sent in an aborted transaction is to be told: its calls are refused until one
    of them has raised the error where it is awaited, and no other refused call is still open.
 2. Calls that the author made before it was told, but that are checked later (from a queue), are
    refused too. No call is carried out after an earlier one of its author was refused. If that
    author has sent in the open transaction, that is aborted, too: being told means going back with
    everything.
 3. The restart point of a source partition does not move while an author that sent records of it
    is still to be told, nor by a call that was made before the telling.
 4. An author that has ended (a task that is done) cannot be told. If nobody has heard of the abort,
    the next call is told, whoever makes it. The restart point does not move either until a record
    of its source partition is sent again; but that refusal itself tells, and comes only once.

Telling takes two steps, because an error raised on one thread is heard on another.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: ``Call.made`` of a call that is checked as it is made.
NOW = math.inf


def _never() -> bool:
    return False


class Author:
    """Who sends: a task; or all threads that share a ``ProducerGroup``, as one author.

    Parameters
    ----------
    has_ended : callable
        Whether it will make no more calls.
    hears_at_once : bool
        Whether an error is heard as soon as it is raised.
    """

    __slots__ = ("has_ended", "hears_at_once", "told_at")

    def __init__(
        self, has_ended: Callable[[], bool] = _never, *, hears_at_once: bool = False
    ) -> None:
        self.has_ended = has_ended
        self.hears_at_once = hears_at_once
        self.told_at: float = 0  # ``Aborts.tellings`` after its last one


class Call:
    """A call by an author.

    Parameters
    ----------
    author : Author
        Who makes it.
    made : float
        ``Aborts.tellings`` at the time of the call.
    """

    __slots__ = ("abort", "author", "is_open", "made")

    def __init__(self, author: Author, made: float = NOW) -> None:
        self.author = author
        self.made = made
        self.abort = 0  # the number of the abort for which it is refused
        self.is_open = False  # refused, and its author has not heard of it yet


@dataclass
class _Debt:
    abort: int
    reason: str
    partitions: set[int] = field(default_factory=set)
    open_calls: int = 0
    heard: bool = False


class Aborts:
    """Which authors of one member are still to be told of aborted transactions.

    Attributes
    ----------
    tellings : int
        How many tellings there have been.
    """

    def __init__(self) -> None:
        self.tellings = 0
        self._lock = threading.Lock()  # held for decisions only: an event loop takes it
        self._aborts = 0
        self._reason = ""
        self._heard = 0  # the last abort that somebody was told of
        self._sent: dict[Author, set[int]] = {}  # in the open transaction
        self._debts: dict[Author, _Debt] = {}
        #: Source partitions of ended authors, until a record of theirs is sent again.
        self._left: set[int] = set()
        self._for_anybody: _Debt | None = None
        self._anybody_told_at = 0
        self._told_at: dict[int, int] = {}  # by source partition: the last telling of its authors

    # -- the open transaction ---------------------------------------------------------------------

    def sent(self, author: Author, partitions: Collection[int]) -> None:
        """The author has sent a record of these source partitions; ``refusal`` was None."""
        before = self._sent.get(author)
        if before is not None and before.issuperset(partitions):
            return
        with self._lock:
            self._sent.setdefault(author, set()).update(partitions)
            self._left.difference_update(partitions)

    def has_sent(self, author: Author) -> bool:
        """Whether the author has sent in the open transaction; a refused call then aborts that."""
        return author in self._sent

    def committed(self) -> None:
        """The open transaction is committed: nobody need be told of it."""
        self._sent = {}

    def aborted(self, reason: str) -> None:
        """The open transaction is aborted: every author that sent in it is to be told."""
        with self._lock:
            self._abort(reason)

    def aborted_by(self, author: Author, reason: str) -> None:
        """As ``aborted``, by an author that knows of it, and answers for all that have ended."""
        with self._lock:
            self._debts.pop(author, None)
            self._sent.pop(author, None)
            self._sent = {each: of for each, of in self._sent.items() if not each.has_ended()}
            self._leave()
            self._left.clear()
            self._for_anybody = None
            self._abort(reason)
            self._heard = self._aborts

    # -- telling ----------------------------------------------------------------------------------

    @property
    def any_to_tell(self) -> bool:
        """Whether anybody is to be told; takes no lock."""
        return bool(self._debts) or self._for_anybody is not None

    @property
    def any_to_refuse(self) -> bool:
        """Whether some calls may not move some restart points; takes no lock."""
        return bool(self._debts or self._left or self._told_at)

    def passes(self, call: Call) -> bool:
        """Whether ``refusal`` is certain to return None; takes no lock."""
        return (
            not self.any_to_tell
            and call.made >= call.author.told_at
            and call.made >= self._anybody_told_at
        )

    def refuses(self, call: Call) -> bool:
        """Whether ``refusal`` would return a reason."""
        with self._lock:
            self._leave()
            return self._reason_for(call) is not None

    def refusal(self, call: Call) -> str | None:
        """Return why the call is refused, which its author is to be told; None if it is not.

        The caller raises the reason, and finally calls ``told`` or ``unheard``.
        """
        with self._lock:
            self._leave()
            found = self._reason_for(call)
            if found is None:
                return None
            # Calls that the author makes before it hears of this are refused as well.
            self._open(call, self._debts.setdefault(call.author, found))
            return found.reason

    def owe(self, call: Call, reason: str, partitions: Collection[int] = ()) -> None:
        """Have the call's author told this; nobody else moves these restart points until then."""
        with self._lock:
            self._reason = reason
            self._left.difference_update(partitions)
            self._open(call, self._owe(call.author, partitions))

    def owes(self, call: Call) -> bool:
        """Whether the author, which has not heard this call's error yet, is still to be told."""
        with self._lock:
            return call.author in self._debts

    def told(self, call: Call) -> None:
        """The call's author has heard the error of ``refusal`` or ``owe``."""
        with self._lock:
            self._leave()
            self._heard = max(self._heard, call.abort)
            self._end(call, heard=True)
            if self._for_anybody is not None and self._for_anybody.abort <= self._heard:
                self._for_anybody = None
                self.tellings += 1
                self._anybody_told_at = self.tellings

    def unheard(self, call: Call) -> None:
        """Nobody waits for the call's error any more."""
        with self._lock:
            self._end(call, heard=False)

    # -- commits ----------------------------------------------------------------------------------

    def holds(self, call: Call, partitions: Collection[int]) -> frozenset[int]:
        """Return the partitions whose restart point the call may not move past missing records."""
        with self._lock:
            self._leave()
            held = {p for p in partitions if p in self._left or self._told_at.get(p, 0) > call.made}
            for author, debt in self._debts.items():
                if author is not call.author:
                    held.update(debt.partitions.intersection(partitions))
            return frozenset(held)

    # -- with the lock held -----------------------------------------------------------------------

    def _abort(self, reason: str) -> None:
        self._aborts += 1
        self._reason = reason
        sent, self._sent = self._sent, {}
        for author, partitions in sent.items():
            self._owe(author, partitions)

    def _owe(self, author: Author, partitions: Collection[int]) -> _Debt:
        debt = self._debts.setdefault(author, _Debt(self._aborts, self._reason))
        debt.heard = debt.heard and debt.abort == self._aborts
        debt.abort, debt.reason = self._aborts, self._reason
        debt.partitions.update(partitions)
        return debt

    def _reason_for(self, call: Call) -> _Debt | None:
        author = call.author
        if author in self._debts:
            return self._debts[author]
        if self._for_anybody is not None:
            return _Debt(self._for_anybody.abort, self._for_anybody.reason)
        if call.made < author.told_at or call.made < self._anybody_told_at:
            return _Debt(self._aborts, self._reason)
        return None

    def _open(self, call: Call, debt: _Debt) -> None:
        call.abort = debt.abort
        if call.made != NOW and not call.is_open:
            call.is_open = True
            debt.open_calls += 1

    def _end(self, call: Call, *, heard: bool) -> None:
        """Settle a call; the debt ends once heard, if no open call may be awaited elsewhere."""
        author = call.author
        debt = self._debts.get(author)
        if debt is not None:
            debt.open_calls -= call.is_open
            debt.heard |= heard and debt.abort <= call.abort
            if debt.heard and not debt.open_calls:
                del self._debts[author]
                self.tellings += 1
                author.told_at = self.tellings
                self._told_at |= dict.fromkeys(debt.partitions, self.tellings)
        call.is_open = False

    def _leave(self) -> None:
        """If no caller has seen an ended author's abort yet, the next call raises it."""
        for author in [each for each in self._debts if each.has_ended()]:
            debt = self._debts.pop(author)
            author.told_at = NOW  # its earlier calls are refused for good
            self._left |= debt.partitions
            if debt.abort > self._heard:
                self._for_anybody = debt
