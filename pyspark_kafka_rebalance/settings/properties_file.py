"""A settings file as Kafka's own tools take it: the format of ``java.util.Properties``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..errors import OptionError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

#: A name, in which any character may be escaped; a separator; the value.
_SETTING = re.compile(r"((?:\\.|[^\\=: \t\f])+)[ \t\f]*(?:[=:]|(?<=[ \t\f]))(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)

_LINE_ENDS = re.compile(r"\r\n|\r|\n")


def decode_properties(content: bytes, option: str) -> dict[str, str]:
    """Return the settings in a file's bytes, which are ISO-8859-1, as Java reads them.

    The option names the file, for the error; raises as :func:`read_properties`.
    """
    return read_properties(_LINE_ENDS.split(content.decode("latin-1")), option)


def read_properties(lines: Iterable[str], option: str) -> dict[str, str]:
    """Return the settings in a file's lines; the last one wins if a name is repeated.

    Blanks around a value are dropped, as in Kafka.

    Raises OptionError if a line is neither a setting nor a comment. Java takes a line with only a
    name as a setting without a value; in any file for Kafka that is a mistake.
    """
    settings = {}
    for number, line in _logical_lines(lines, option):
        setting = _SETTING.fullmatch(line)
        if setting is None:
            raise _refusal(option, number)
        try:
            name, value = _unescaped(setting[1]), _unescaped(setting[2].strip(_BLANKS))
        except ValueError:
            raise _refusal(option, number) from None
        settings[name] = value.strip()
    return settings


def _logical_lines(lines: Iterable[str], option: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines that are not comments, continued if they end in a backslash."""
    numbered = enumerate(lines, start=1)
    for number, line in numbered:
        text = line.strip("\r\n").lstrip(_BLANKS)
        if not text or text[0] in "#!":
            continue
        while _goes_on(text):
            _, following = next(numbered, (0, None))
            if following is None:
                raise _refusal(option, number)
            text = text[:-1] + following.strip("\r\n").lstrip(_BLANKS)
        yield number, text


def _goes_on(text: str) -> bool:
    """Whether the line ends in a backslash that is not itself escaped."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(_character, text)


def _character(escaped: re.Match[str]) -> str:
    what = escaped[1]
    if len(what) == 5:
        return chr(int(what[1:], 16))
    if what == "u":
        raise ValueError
    return _ESCAPES.get(what, what)


def _refusal(option: str, number: int) -> OptionError:
    # The line is not quoted: it may be part of a password.
    return OptionError(option, f"line {number}", "name=value, on one line or continued by \\")
