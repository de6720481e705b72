"""A griffe extension: turns the Sphinx markup in numpydoc docstrings into the site's Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|exc|data):`~?\.?([^`]+)`")


class PlainDocstrings(Extension):
    """Turns ``:class:`X``` into code, and ``::`` at the end of a line into ``:``."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Convert the object's docstring, if it has one."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
