"""What a connection of TLS 1.3 may cost that carries no data: each key update takes 80 us of CPU for 27 bytes, and
OpenSSL works off all that it has got before it returns.

So a connection hands over what arrived in pieces of few records, and ends where too many of them held no data. Pure.
"""

from __future__ import annotations

import errno
from typing import Final

PIECE_BYTES: Final = 256 << 10
"""As much as a transport receives at once: each piece costs copies and calls, 7 us. What bounds the work is the number
of records. A listener with thousands of connections hands over less, because OpenSSL's memory never shrinks."""
_PIECE_RECORDS: Final = 32
_HEAD_BYTES: Final = 5
MOST_WITHOUT_DATA: Final = 64
"""Records. What honest peers send of this kind: a few tickets after the handshake, a key update per many GiB."""
_DATA_BYTES_PER_RECORD: Final = 1 << 20
"""Of data, which let one more record come without any."""


class TlsRecords:
    """Of one direction of one connection, from its first byte on. Cost: 1 us for each record."""

    __slots__ = ("_head", "_left_bytes", "_records", "_without_data_bytes")

    def __init__(self) -> None:
        self._head = b""
        """Of the next record, as far as it has come."""
        self._left_bytes = 0
        """Of the present record, still to come."""
        self._records = 0
        """Begun in the last piece."""
        self._without_data_bytes = 0
        """Records that held no data, in bytes of data that make up for them."""

    def piece(self, arrived: memoryview, start: int) -> int:
        """Where the next piece ends that begins at `start`."""
        end = min(len(arrived), start + PIECE_BYTES)
        left, records = self._left_bytes, 0
        while True:
            if left > end - start:
                self._left_bytes, self._records = left - (end - start), records
                return end
            start += left
            left = 0
            if records == _PIECE_RECORDS:
                break
            if start + _HEAD_BYTES <= end and not self._head:
                left = arrived[start + 3] << 8 | arrived[start + 4]
                start += _HEAD_BYTES
            else:
                head = self._head + bytes(arrived[start : min(end, start + _HEAD_BYTES - len(self._head))])
                start += len(head) - len(self._head)
                self._head = head
                if len(head) < _HEAD_BYTES:
                    break
                left, self._head = head[3] << 8 | head[4], b""
            records += 1
        self._left_bytes, self._records = left, records
        return start

    def decrypted(self, reads: int, data_bytes: int) -> None:
        """What came out of the last piece: `reads` calls had data. Raises: OSError for a connection that
        costs much and carries nothing."""
        change = (self._records - reads) * _DATA_BYTES_PER_RECORD - data_bytes
        self._records = 0
        self._without_data_bytes = max(0, self._without_data_bytes + change)
        if self._without_data_bytes > MOST_WITHOUT_DATA * _DATA_BYTES_PER_RECORD:
            raise OSError(errno.EPROTO, f"{MOST_WITHOUT_DATA} records of TLS without any data: too many key updates")
