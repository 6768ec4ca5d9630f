"""A connection over a transport of asyncio, uvloop or aiohttp whose other end may be hostile: what arrives reaches
OpenSSL a few records at a time, and too many without data end it (`tls_records.py`).
Lives on the event loop.
"""

from __future__ import annotations

import ssl
from typing import Any

from stratalog.event_loop.tls_records import PIECE_BYTES, TlsRecords


class BoundedTls(ssl.SSLObject):
    """Requires: set as `sslobject_class` of a context, which makes these by `wrap_bio`."""

    _arrived: ssl.MemoryBIO
    """What the transport received."""
    _fed: ssl.MemoryBIO
    """What OpenSSL reads."""
    _rest: memoryview
    """Taken out of `_arrived`, and not fed yet."""
    _records: TlsRecords
    _reads = 0
    """Since something was fed last, those that had data."""
    _data_bytes = 0

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **named: Any) -> BoundedTls:
        """`SSLContext.wrap_bio` calls it: the one place where the memory can be put in between."""
        fed = ssl.MemoryBIO()
        made: BoundedTls = super()._create(fed, outgoing, *given, **named)  # type: ignore[misc]  # not in its types
        made._arrived, made._fed, made._rest, made._records = incoming, fed, memoryview(b""), TlsRecords()
        return made

    def do_handshake(self) -> None:
        while True:
            try:
                super().do_handshake()
                return
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        while True:
            try:
                got: Any = super().read(size, buffer)  # a count where there is a buffer
            except ssl.SSLWantReadError:
                self._settle()
                if not self._feed():
                    raise
                continue
            self._reads += 1
            self._data_bytes += got if buffer is not None else len(got)
            return got

    def pending(self) -> int:
        """All that a read may find beside what is in the transport's memory: uvloop reads only while there is some."""
        return super().pending() + self._fed.pending + len(self._rest)

    def unwrap(self) -> None:
        while True:
            try:
                super().unwrap()
                return
            except ssl.SSLWantReadError:
                self._settle()
                if not self._feed():
                    raise

    def _settle(self) -> None:
        """All that was fed has been read. Raises: OSError, as `TlsRecords`."""
        reads, data_bytes = self._reads, self._data_bytes
        self._reads = self._data_bytes = 0
        self._records.decrypted(reads, data_bytes)

    def _feed(self) -> bool:
        """Whether there was something to feed."""
        if not self._rest:
            self._rest = memoryview(self._arrived.read(PIECE_BYTES))
            if not self._rest:
                if self._arrived.eof and not self._fed.eof:
                    self._fed.write_eof()
                    return True
                return False
        end = self._records.piece(self._rest, 0)
        self._fed.write(self._rest[:end])
        self._rest = self._rest[end:]
        return True


class AcceptedTls(BoundedTls):
    """Of a port: its handshake is done before it has a transport (`tls_transports.py`), which continues with it."""

    _own: ssl.MemoryBIO
    """What OpenSSL writes."""
    _sent: ssl.MemoryBIO | None = None
    """What the transport sends."""

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **named: Any) -> AcceptedTls:
        made = super()._create(incoming, outgoing, *given, **named)
        assert isinstance(made, AcceptedTls)
        made._own = outgoing
        return made

    def continue_with(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        """From now on a transport receives into the one, which is empty yet, and sends from the other. What has arrived
        before is read first."""
        incoming.write(self._arrived.read())
        self._arrived, self._sent = incoming, outgoing
        self._pass_on()

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        try:
            return super().read(size, buffer)
        finally:  # an answer to a key update, an alert
            self._pass_on()

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        finally:
            self._pass_on()

    def unwrap(self) -> None:
        try:
            super().unwrap()
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._sent is not None and self._own.pending:
            self._sent.write(self._own.read())
