"""The options of a table: ``CREATE TABLE … USING kafka_deferred OPTIONS (…)``.

When such a table is created, Spark gives the source its options twice, the second time as
``option.NAME``, among the table's properties. When the table is read, Spark (up to 4.3) gives a
source in Python none of them, only the columns as they were declared. So the options travel in the
metadata of one column. Secrets do not: that metadata is part of every DataFrame and of the files
that are written from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The column that carries a table's options: every table has it, and few queries select it.
CARRIER = "generation"

_OPTION = "option."
_OPTIONS, _WITHHELD = "kafka_deferred.options", "kafka_deferred.withheld"

#: A location may be a URI with a key in it.
_SECRET = re.compile(r"password|secret|jaas|ssl\.keystore\.key|passphrase|checkpointlocation")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a table, as far as it can keep them."""

    kept: Mapping[str, str] = field(default_factory=dict)  #: by name in lower case
    withheld: tuple[str, ...] = ()  #: the names of the options that hold secrets

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableOptions:
        """Return the options that a table keeps of these."""
        secret = tuple(sorted(name for name in options if _SECRET.search(name)))
        return cls({n: text for n, text in options.items() if n not in secret}, secret)

    @classmethod
    def in_columns(cls, schema: StructType) -> TableOptions | None:
        """Return the options that a table's columns carry; None if they carry none."""
        for column in schema:
            if _OPTIONS in column.metadata:
                kept = column.metadata[_OPTIONS]
                return cls(dict(kept), tuple(column.metadata[_WITHHELD]))
        return None

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the column that carries them."""
        return {_OPTIONS: dict(self.kept), _WITHHELD: list(self.withheld)}

    def with_those_of(self, read: Mapping[str, str]) -> dict[str, str]:
        """Return the table's options, overridden by the options given with the read.

        Raises OptionError if a secret is not given with the read.
        """
        for name in self.withheld:
            if name not in read and name != "checkpointlocation":
                raise OptionError(
                    name,
                    None,
                    "its value with each read, as in spark.read.option(…).table(…) or SELECT … "
                    "FROM … WITH (…): a table keeps no secrets",
                )
        return {**self.kept, **read}


def given_options(options: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Return the options that a user gave, in lower case, and whether for a table to be created.

    The other properties of a table, such as its comment, its owner and ``TBLPROPERTIES``, are none
    of the source's.
    """
    lower = {name.lower(): value for name, value in options.items()}
    of_table = {n.removeprefix(_OPTION): v for n, v in lower.items() if n.startswith(_OPTION)}
    return (of_table, True) if of_table else (lower, False)
