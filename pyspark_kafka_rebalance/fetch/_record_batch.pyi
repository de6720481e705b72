from typing import Any

from .columns import Data

def skim(records: Data, end: int, /) -> tuple[int, int, int]: ...
def crc32c(data: Data, /) -> int: ...
def crc32c_portable(data: Data, /) -> int: ...
def untrack(record: tuple[Any, ...], /) -> None: ...

class Columns:
    bytes: int
    def __new__(cls, with_headers: bool) -> Columns: ...
    def __len__(self) -> int: ...
    def extend(
        self,
        records: Data,
        at: int,
        start: int,
        end: int,
        check_crcs: bool,
        transactions: bool,
        full_rows: int,
        full_bytes: int,
        /,
    ) -> int: ...
    def append_records(
        self,
        payload: Data,
        first: int,
        limit: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        same_timestamp: bool,
        start: int,
        end: int,
        /,
    ) -> bool: ...
    def append_row(
        self,
        key: Any,
        value: Any,
        offset: int,
        timestamp_us: int,
        timestamp_type: int,
        headers: Any,
        /,
    ) -> None: ...
    def take(self) -> tuple[Any, ...]: ...
