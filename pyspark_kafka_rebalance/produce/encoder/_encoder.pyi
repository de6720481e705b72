from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

Batch: TypeAlias = bytearray | memoryview
Sender: TypeAlias = tuple[int, int, int, bool]

def murmur2(data: bytes, /) -> int: ...
def stamp(batch: Batch, stamp: Sender, /) -> None: ...
def stamped_header(batch: Batch, stamp: Sender, /) -> bytes: ...

class Encoder:
    open_bytes: int
    def __new__(
        cls, batch_bytes: int, batch_records: int, max_request_bytes: int, sealed: bool
    ) -> Encoder: ...
    def first_refused(self, rows: tuple[Any, ...], partitions: int, /) -> int: ...
    def append(
        self,
        rows: tuple[Any, ...],
        timestamp_ms: int,
        partitions: int,
        order: array[int],
        at: int,
        /,
    ) -> int: ...
    def close_all(self) -> None: ...
    def take(self) -> list[tuple[int, memoryview, int]]: ...

class Records:
    size: int
    def __new__(
        cls,
        batch_bytes: int,
        batch_records: int,
        max_request_bytes: int,
        refuse: Callable[[int], object],
    ) -> Records: ...
    def __len__(self) -> int: ...
    def append(self, key: Any, value: Any, headers: Any, timestamp_ms: int, /) -> int: ...
    def take(self, sealed: bool, /) -> memoryview: ...

class Room:
    used: int
    most: int
    accepts: int
    locked: Callable[[], bool] | None
    def __new__(cls, most: int) -> Room: ...

class Appender:
    size: int
    partitions: int
    sticky: int
    ready: bool
    def __new__(cls, room: Room) -> Appender: ...
    def append(
        self,
        transaction: int,
        key: Any,
        value: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        /,
    ) -> bool: ...
    def know(self, partition: int, records: Records | None, /) -> None: ...
    def open(self) -> list[int]: ...
