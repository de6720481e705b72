"""Whether the option ``checkpointLocation`` of the source names the checkpoint of this query.

Spark does not pass a source the location of the query's checkpoint, so the option can name
anything. The checks:

* ``load()``: a file, or a folder that this user cannot list, is no checkpoint. One that does not
  exist may be: Spark makes it when a new query starts.
* the first plan of a run: Spark has written ``metadata`` before, and the query's offset is the end
  of one of the batches in ``offsets``. (A new query has none.)
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from ...errors import OptionError
from .checkpoint_files import CheckpointFiles, is_local, open_checkpoint, redacted
from .offset_log import parse_offset_log

log = logging.getLogger(__name__)

_OPTION = "checkpointLocation"
_SAME = "set it to the checkpointLocation of the query's writer"
_READABLE = f"{_SAME}, and check its address, the credentials and the network of the driver's host"

#: How long the start of a query waits for a store: longer than pyarrow tries an endpoint where
#: nothing listens. A store that is only slow fails nothing.
_ANSWERS_WITHIN_S = 30.0


def refuse_no_folder(location: str) -> None:
    """Raise for a local path at which Spark cannot make a checkpoint; no network.

    Raises OptionError if it, or a folder above it, is a file, or it cannot be listed.
    """
    if not is_local(location):
        return
    try:
        os.scandir(location).close()
    except FileNotFoundError:
        pass  # Spark makes it when the query starts
    except NotADirectoryError:
        raise OptionError(
            _OPTION, location, _SAME, f"names {location}, which is not a folder"
        ) from None
    except OSError as error:
        raise _unreadable(location, error) from None


class LocationCheck:
    """One check of a parsed location, on a thread of its own; starts at once.

    ``stands_at`` is the query's offset before its first plan; None if it has no batch yet.
    """

    def __init__(self, location: str, stands_at: dict[str, Any] | None) -> None:
        self._location = location
        self._stands_at = stands_at
        self._failure: Exception | None = None
        # A daemon: if a store does not answer, the check may outlive the query.
        self._thread = threading.Thread(target=self._run, name="checkpoint-check", daemon=True)
        self._thread.start()

    def raise_failure(self, timeout_s: float = _ANSWERS_WITHIN_S) -> None:
        """Wait for the result, at most this long.

        Raises OptionError if the checkpoint cannot be read, or is not that of the query.
        """
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            log.warning(
                "the checkpoint %s did not answer within %g s: cannot check that it belongs to "
                "this query, which continues; check the address, the credentials and the network",
                redacted(self._location),
                timeout_s,
            )

    def _run(self) -> None:
        try:
            if problem := _problem(open_checkpoint(self._location), self._stands_at):
                shown = redacted(self._location)
                self._failure = OptionError(_OPTION, shown, _SAME, problem.format(shown))
        except ValueError as error:  # offsets of an unknown version may well be the query's
            log.warning("cannot parse the checkpoint %s: %s", redacted(self._location), error)
        except Exception as error:  # pyarrow raises more than OSError
            self._failure = _unreadable(self._location, error)


def _problem(files: CheckpointFiles, stands_at: dict[str, Any] | None) -> str | None:
    """Return the problem of this checkpoint for a query at this offset; None if it has none."""
    batches = sorted((int(name) for name in files.names("offsets") if name.isdigit()), reverse=True)
    if not batches and not files.exists("metadata"):
        return "names {}, where no query has its checkpoint"
    # The newest, as a rule. With asynchronous progress tracking a restart may be at an older one.
    for batch in batches:
        try:
            text = files.read(f"offsets/{batch}")
        except FileNotFoundError:
            continue  # Spark has just deleted it
        if any(end == stands_at for _, end in parse_offset_log(text)):
            return None
        if stands_at is None and text.startswith("v2\n"):
            return None  # sources with names: this one may have been added to the query
    if not batches:
        return None if stands_at is None else "names {}, a checkpoint without this query's batches"
    return "names {}, the checkpoint of another query"


def _unreadable(location: str, error: Exception) -> OptionError:
    shown = redacted(location)
    why = f"{type(error).__name__}: {error}"
    return OptionError(_OPTION, shown, _READABLE, f"names {shown}, which cannot be read ({why})")
