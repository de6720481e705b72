"""Exact offset ranges, from the partitions' leaders, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pyarrow as pa
from kafka import errors as kafka_errors

from ..errors import OptionError
from ..settings.bootstrap_servers import without_empty_servers
from . import connections
from .columns import record_schema
from .connections import ClusterConnections
from .decoder import DecoderSettings, RecordDecoder
from .fetch_pipeline import FetchPipeline
from .leaders import PartitionLeaders
from .offset_range import OffsetRange
from .range_reader import FetchSettings, RangeReader, give_up

__all__ = ["RangeFetcher", "record_schema"]

_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


class RangeFetcher:
    """Reads offset ranges. Belongs to no consumer group and keeps no state but connections.

    The next fetch is in flight while one is decoded. Memory is bounded by the fetch size and the
    batch size, not by the ranges; a single record batch that is larger still arrives.

    Parameters
    ----------
    client_config : Mapping[str, Any]
        kafka-python's keyword names: ``bootstrap_servers``, ``security_protocol``, ``ssl_*``,
        ``sasl_*``, ``client_id``, ``request_timeout_ms``, … Fetchers with the same configuration
        in one process share their connections, even if one comes after the other.
    isolation_level : str
        ``read_uncommitted`` (default), or ``read_committed``: records of aborted transactions are
        left out, and a range that ends past an open transaction waits for that to end, up to
        ``retry_timeout_ms``.
    fail_on_data_loss : bool
        Whether it is an error (default) if records of a range are missing (deleted, or the topic is
        missing or was recreated). Otherwise it is a warning, and the remaining records are read.
    include_headers : bool
        Whether there is a column ``headers``. Costs time for every record that has any.
    fetch_max_bytes, max_partition_fetch_bytes : int
        A fetch requests at most the smaller of the two (4 MiB). Larger fetches cost several times
        their size in memory; smaller ones cost more round trips.
    fetch_min_bytes, fetch_max_wait_ms : int
        How long a broker may hold back an answer that is smaller than ``fetch_min_bytes``. The
        default never waits for data that exists.
    batch_rows, batch_bytes : int
        A record batch is handed out once it has about this many rows, or rows of about this size.
    check_crcs : bool
        Whether checksums are compared.
    retry_timeout_ms : int
        Fail if there is no progress for this long: leader elections, lost connections, open
        transactions.
    client_rack : str
        This client's rack: brokers with a ``replica.selector.class`` then name the nearest replica
        to read from (KIP-392).

    Raises
    ------
    OptionError
        ``isolation_level`` is not one of the two, a size is not positive, or there is no server
        in ``bootstrap_servers``.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        *,
        isolation_level: str = "read_uncommitted",
        fail_on_data_loss: bool = True,
        include_headers: bool = False,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 4 * 1024 * 1024,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        batch_rows: int = 16_384,
        batch_bytes: int = 2 * 1024 * 1024,
        check_crcs: bool = True,
        retry_timeout_ms: int = 60_000,
        client_rack: str = "",
    ) -> None:
        if isolation_level not in _ISOLATION_LEVELS:
            raise OptionError("isolation_level", isolation_level, " or ".join(_ISOLATION_LEVELS))
        for name, size in (("batch_rows", batch_rows), ("batch_bytes", batch_bytes)):
            if size <= 0:
                raise OptionError(name, size, "a positive number")
        self._client_config = without_empty_servers(client_config)
        read_committed = isolation_level == "read_committed"
        self._fetch_settings = FetchSettings(
            read_committed=read_committed,
            fail_on_data_loss=fail_on_data_loss,
            fetch_bytes=min(fetch_max_bytes, max_partition_fetch_bytes),
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            retry_timeout_s=retry_timeout_ms / 1000,
            client_rack=client_rack,
        )
        self._decoder_settings = DecoderSettings(
            include_headers=include_headers,
            read_committed=read_committed,
            check_crcs=check_crcs,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
        )
        self._bytes_per_offset: dict[str, float] = {}
        self._connections: ClusterConnections | None = None

    def connect(self) -> None:
        """Find the cluster's brokers and open a connection to each, ahead of `read`.

        Raises
        ------
        KafkaRebalanceError
            None of ``bootstrap_servers`` could be reached within ``retry_timeout_ms``, or they
            do not let us in.
        """
        self._connected().open_all()

    def read(
        self,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[OffsetRange, UUID] = MappingProxyType({}),
        on_fetched: Callable[[OffsetRange, bytes], None] | None = None,
    ) -> Iterator[tuple[OffsetRange, pa.RecordBatch]]:
        """Read ranges.

        Parameters
        ----------
        ranges : Sequence[OffsetRange]
            The ranges. Offsets without a record (compaction, transaction markers) are skipped.
        topic_ids : Mapping[OffsetRange, UUID], optional
            The id of a range's topic, if it is known. Nothing is read of another topic with the
            same name, as if the records were deleted. Brokers before 2.8 have no topic ids.
        on_fetched : callable, optional
            Called with a range and the record batches fetched for it, as they are in the log.

        Yields
        ------
        OffsetRange, pyarrow.RecordBatch
            A range, and rows of it with the columns of `record_schema`. A range can have several
            batches, in offset order; a range without records has none. Batches of different ranges
            take turns.

        Raises
        ------
        DataLossError
            Records of a range no longer exist, and ``fail_on_data_loss`` is on.
        CorruptRecordError
            A record batch is damaged.
        KafkaRebalanceError
            No progress for ``retry_timeout_ms``, or none possible.
        """
        cluster = self._connected()
        leaders = PartitionLeaders(cluster, [offset_range.topic for offset_range in ranges])
        readers = [
            RangeReader(
                offset_range,
                leaders,
                self._fetch_settings,
                self._bytes_per_offset,
                topic_ids.get(offset_range),
            )
            for offset_range in ranges
            if len(offset_range)
        ]
        decoders: dict[RangeReader, RecordDecoder] = {}
        for reader, fetched in FetchPipeline(readers, cluster, self._fetch_settings).fetches():
            finished = reader.finished
            decoder = decoders.pop(reader, None)
            decoder = decoder or RecordDecoder(reader.range, self._decoder_settings)
            if fetched is not None:
                if on_fetched is not None:
                    on_fetched(reader.range, fetched.records)
                for batch in decoder.decode(fetched.records, fetched.position, fetched.aborted):
                    yield reader.range, batch
            if finished:
                for batch in decoder.finish():
                    yield reader.range, batch
            else:
                decoders[reader] = decoder

    def close(self) -> None:
        """Give the connections back. They stay open for the next fetcher of this process."""
        if self._connections is not None:
            connections.release(self._connections)
            self._connections = None

    def _connected(self) -> ClusterConnections:
        if self._connections is not None and not self._connections.usable:
            self.close()
        if self._connections is None:
            self._connections = connections.acquire(
                self._client_config, self._fetch_settings.fetch_bytes
            )
        timeout_s = self._fetch_settings.retry_timeout_s
        try:
            self._connections.bootstrap(timeout_s)
        except (kafka_errors.KafkaError, OSError) as error:
            give_up(error, self._connections.bootstrap_servers, timeout_s)
        return self._connections
