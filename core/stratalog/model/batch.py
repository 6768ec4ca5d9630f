"""What the 61-byte header of a record batch v2 says (Kafka's format, magic 2)."""

from __future__ import annotations

from typing import NamedTuple

BATCH_HEADER_BYTES = 61
NO_PRODUCER_ID = -1
LARGEST_BATCH_BYTES = 1 << 30
"""The most that `socket.request.max.bytes` of any node can be. No request carries more, so no batch is larger, whatever
its header claims."""


class BatchHeader(NamedTuple):
    """A record batch's header, decoded. `size_bytes` is the whole batch, header included.

    Source: https://kafka.apache.org/documentation/#recordbatch
    """

    base_offset: int
    size_bytes: int
    epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end_offset(self) -> int:
        """One past the last offset of the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & 0x08)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)
