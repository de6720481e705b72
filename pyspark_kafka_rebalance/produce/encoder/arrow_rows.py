"""Arrow columns as the encoder takes them: few types, names checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

COLUMNS = ("key", "value", "headers", "timestamp", "partition")

_TICKS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """Headers: for each row a list, and the keys and values that the lists are cut from.

    Attributes
    ----------
    lists : pyarrow.ListArray, LargeListArray or MapArray
        Of each row; null and empty are the same.
    keys, values : pyarrow.Array
        Binary or large binary, as the offsets of ``lists`` count.
    """

    lists: pa.Array
    keys: pa.Array
    values: pa.Array


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows to encode. Columns that were not given are None.

    Attributes
    ----------
    rows : int
        How many there are.
    values, keys : pyarrow.Array, optional
        Binary or large binary.
    headers : HeaderColumn, optional
        None if no row has any.
    timestamps : pyarrow.Int64Array, optional
        Since the epoch; null is the time of the call.
    ticks_per_ms : int
        The unit of the timestamps; they are rounded down to milliseconds.
    partitions : pyarrow.Int32Array, optional
        Null leaves the choice to the partitioner.
    """

    rows: int
    values: pa.Array | None
    keys: pa.Array | None
    headers: HeaderColumn | None
    timestamps: pa.Array | None
    ticks_per_ms: int
    partitions: pa.Array | None


def arrow_rows(data: pa.RecordBatch | pa.Table) -> list[ArrowRows]:
    """Return the rows of Arrow data, chunk by chunk.

    Parameters
    ----------
    data : pyarrow.RecordBatch or pyarrow.Table
        With a column ``value`` and any of ``key``, ``headers``, ``timestamp`` and ``partition``.
        Keys and values are strings or bytes of any layout. Headers are lists of structs, a string
        and bytes, or maps of them. Timestamps of any unit, or integers: milliseconds.

    Raises
    ------
    ValueError
        A column is missing or unknown, or a value does not fit (as pyarrow says).
    TypeError
        A column has another type.
    """
    names = data.schema.names
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown or "value" not in names or len(set(names)) < len(names):
        raise ValueError(
            f"columns {', '.join(names) or 'none'}; allowed: value and any of "
            f"{', '.join(name for name in COLUMNS if name != 'value')}, each once"
        )
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    return [_rows(batch) for batch in batches if batch.num_rows]


def _rows(batch: pa.RecordBatch) -> ArrowRows:
    def column(name: str, convert: Callable[[str, pa.Array], Any]) -> Any:
        at = batch.schema.get_field_index(name)
        if at < 0 or batch.column(at).null_count == batch.num_rows:
            return None
        plain = _plain(batch.column(at))
        return None if plain.null_count == batch.num_rows else convert(name, plain)

    timestamps, ticks_per_ms = column("timestamp", _timestamps) or (None, 1)
    return ArrowRows(
        rows=batch.num_rows,
        values=column("value", _bytes),
        keys=column("key", _bytes),
        headers=column("headers", _headers),
        timestamps=timestamps,
        ticks_per_ms=ticks_per_ms,
        partitions=column("partition", _partitions),
    )


def _plain(array: pa.Array) -> pa.Array:
    """Return the array without dictionaries, runs and views, which may be of one another."""
    kind = array.type
    if types.is_dictionary(kind):
        return _plain(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        import pyarrow.compute as pc

        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, _plain(array.values))
        return pc.run_end_decode(runs.slice(array.offset, len(array)))
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if str(kind) in ("binary_view", "string_view"):  # there are no predicates for all versions
        return array.cast(pa.large_string() if "string" in str(kind) else pa.large_binary())
    return array


def _bytes(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return array
    if types.is_string(kind):
        return array.cast(pa.binary())  # without a copy
    if types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    raise TypeError(f"column {name!r} is {kind}; allowed: strings and binary")


def _headers(name: str, array: pa.Array) -> HeaderColumn:
    kind = array.type
    if types.is_map(kind):
        items = [array.keys, array.items]
    elif (types.is_list(kind) or types.is_large_list(kind)) and _are_pairs(kind.value_type):
        fields = dict(zip(_names(kind.value_type), array.values.flatten(), strict=True))
        items = [fields["key"], fields["value"]]
    else:
        raise TypeError(
            f"column {name!r} is {kind}; allowed: lists of structs of a key (a string) and a value "
            "(binary), and maps of them"
        )
    keys, values = items
    if not (types.is_string(keys.type) or types.is_large_string(keys.type)):
        keys = _plain(keys).cast(pa.large_string())  # an error if it is not UTF-8
    return HeaderColumn(array, _bytes(name, keys), _bytes(name, _no_nulls_only(_plain(values))))


def _are_pairs(kind: pa.DataType) -> bool:
    return types.is_struct(kind) and sorted(_names(kind)) == ["key", "value"]


def _names(kind: pa.StructType) -> list[str]:
    return [kind.field(at).name for at in range(kind.num_fields)]


def _no_nulls_only(array: pa.Array) -> pa.Array:
    """Return an array of the type null as one of binary."""
    return array.cast(pa.binary()) if types.is_null(array.type) else array


def _timestamps(name: str, array: pa.Array) -> tuple[pa.Array, int]:
    kind = array.type
    if types.is_timestamp(kind):
        if kind.unit == "s":
            array = array.cast(pa.timestamp("ms", tz=kind.tz))
        return array.cast(pa.int64()), _TICKS_PER_MS[array.type.unit]
    if types.is_integer(kind):
        return array.cast(pa.int64()), 1
    raise TypeError(f"column {name!r} is {kind}; allowed: timestamps, integers (milliseconds)")


def _partitions(name: str, array: pa.Array) -> pa.Array:
    if types.is_integer(array.type):
        return array.cast(pa.int32())
    raise TypeError(f"column {name!r} is {array.type}; allowed: integers")
