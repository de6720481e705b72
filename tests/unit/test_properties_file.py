"""Settings files as ``java.util.Properties`` reads them."""

from __future__ import annotations

import pytest

from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.settings.properties_file import decode_properties, read_properties

#: What Java makes of each (``Properties.load``), without the blanks that Kafka trims.
FILES = {
    b"": {},
    b"# c\n! c\n  # c\n\n  \t\n": {},
    b"a=b": {"a": "b"},
    b"a = b ": {"a": "b"},
    b"a:b\r\nc : d\re f": {"a": "b", "c": "d", "e": "f"},
    b"a\t=\tb=c": {"a": "b=c"},
    b"a  b c": {"a": "b c"},
    b"a=": {"a": ""},
    b"a=1\na=2": {"a": "2"},
    b'jaas=module required \\\n    username="u" \\\n\tpassword="p";': {
        "jaas": 'module required username="u" password="p";'
    },
    b"a=b\\\n# no comment": {"a": "b# no comment"},
    b"path=C\\:\\\\x\\ty": {"path": "C:\\x\ty"},
    b"a\\ b\\=c=d": {"a b=c": "d"},
    b"a=x\\\\\nb=y": {"a": "x\\", "b": "y"},
    b"a=\\u00e4\\q": {"a": "äq"},
    b"a=\xe4": {"a": "ä"},
    b"a=x\x85y\x1cz": {"a": "x\x85y\x1cz"},
}


@pytest.mark.parametrize("content", FILES, ids=range(len(FILES)))
def test_a_file_reads_as_in_java(content: bytes) -> None:
    assert decode_properties(content, "--command-config") == FILES[content]


@pytest.mark.parametrize("line", ["just-a-name", "a=b \\", "a=\\u00zz", "=b"])
def test_a_line_that_is_no_setting_is_refused_unquoted(line: str) -> None:
    with pytest.raises(OptionError, match=r"'--settings'.*line 2") as refused:
        read_properties(["! fine", line], "--settings")
    assert line not in str(refused.value)
