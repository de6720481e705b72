"""One error for everything that is wrong in one set of options. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import OptionError, SeveralOptionsError

_Value = TypeVar("_Value")


class Problems:
    """Collects errors of options, in the order in which they are found."""

    def __init__(self) -> None:
        self._found: list[OptionError] = []

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self._found)

    @property
    def names(self) -> set[str]:
        """The options in which something is wrong."""
        return {problem.option for problem in self._found}

    def add(self, error: OptionError) -> None:
        """Add a problem, or each of several; the same one counts once."""
        said = {str(problem) for problem in self._found}
        self._found += [problem for problem in error.problems if str(problem) not in said]

    def of(self, parse: Callable[[], _Value], default: _Value) -> _Value:
        """Return the result of ``parse``; if it raises, note the problem and return the default."""
        try:
            return parse()
        except OptionError as error:
            self.add(error)
            return default

    def raise_if_any(self) -> None:
        """Raise the one problem itself, or a SeveralOptionsError with all of them."""
        found = [problem for problem in self._found if not self._is_missing_as_misspelt(problem)]
        if len(found) == 1:
            raise found[0] from None
        if found:
            raise SeveralOptionsError(found)

    def _is_missing_as_misspelt(self, problem: OptionError) -> bool:
        """Whether an option is missing only because its name is misspelt, which is a problem."""
        meant = f"the nearest is {problem.option}"
        return problem.value is None and any(meant == other.allowed for other in self._found)
