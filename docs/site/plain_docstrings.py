"""A griffe extension: docstrings are numpydoc with roles of Sphinx, and the site is Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|exc|data):`~?\.?([^`]+)`")


class PlainDocstrings(Extension):
    """Write ``:class:`X``` as code, and the blocks after ``::`` as indented ones."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for whatever has a docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
