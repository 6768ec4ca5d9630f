"""What a TLS client sends before it has proven anything: its hello is held back until it is whole, and refused where it
would cost this process much and its sender nothing. Pure.

OpenSSL 3.0 takes memory for as much as a hello announces, 155 KiB for 9 bytes. Where a client asks for Diffie-Hellman
over a finite field, the answer costs 120 ms of CPU for 1.3 KB of noise (CVE-2002-20001, "D(HE)at"). `ssl` of Python
3.11 can neither lower the one nor leave out the other without leaving out X25519, too.
"""

from __future__ import annotations

from typing import Final

MOST_HELLO_BYTES: Final = 8 << 10
"""Clients send 200 to 2,000."""
MOST_RECORDS: Final = 512
"""Of a handshake: those of 100 KiB of certificates, where a client sends 512 bytes in each."""
_HEAD_BYTES: Final = 5
_MAJOR_VERSION: Final = 3
_LONGEST_RECORD: Final = 18 << 10
"""Encrypted, in TLS 1.2."""
_HANDSHAKE: Final = 22
_OTHERS: Final = frozenset((20, 21, 23))
"""A change of ciphers, an alert, and what is encrypted. A hello may follow each: OpenSSL skips some."""
_CLIENT_HELLO: Final = 1
_MESSAGE_HEAD_BYTES: Final = 4
_KEY_SHARE: Final = 51
_VERSIONS: Final = 43
_TLS_1_3: Final = b"\x03\x04"
_FINITE_FIELDS: Final = range(0x0100, 0x0200)
"""Groups that RFC 7919 reserves for them."""


class HelloRefused(Exception):
    """Its words are for the log."""


class ClientHello:
    """Of one connection, from its first byte to the end of its handshake. The second hello, for which a server may ask,
    is held back likewise. Memory: a hello and a record."""

    __slots__ = ("_at", "_has_other", "_held", "_is_foreign", "_message", "_records", "offers_1_3")

    def __init__(self) -> None:
        self._held = bytearray()
        self._at = 0
        """Of `_held`: where the first record begins that is not whole."""
        self._message = bytearray()
        """Of the present hello, as far as its records are whole."""
        self._records = 0
        self.offers_1_3 = False
        """TLS 1.3, in a whole hello."""
        self._has_other = False
        """Another message has come, after which OpenSSL takes no hello."""
        self._is_foreign = False
        """What came is no TLS, and OpenSSL has the words for that."""

    def receive(self, arrived: bytes) -> bytes:
        """The bytes that OpenSSL may have now: whole records. Raises: HelloRefused."""
        if self._is_foreign:
            return arrived
        self._held += arrived
        self._is_foreign = not self._take_records()
        end = len(self._held) if self._is_foreign else 0 if self._message else self._at
        released = bytes(self._held[:end])
        del self._held[:end]
        self._at -= min(self._at, end)
        return released

    def rest(self) -> bytes:
        """What is left once the handshake is done: a part of a record of data."""
        return bytes(self._held)

    def _take_records(self) -> bool:
        """Whether all of it may be TLS."""
        held = self._held
        while len(held) - self._at >= _HEAD_BYTES:
            kind, size = held[self._at], held[self._at + 3] << 8 | held[self._at + 4]
            is_known = kind == _HANDSHAKE or kind in _OTHERS
            if not is_known or held[self._at + 1] != _MAJOR_VERSION or size > _LONGEST_RECORD:
                return False
            begin = self._at + _HEAD_BYTES
            if len(held) < begin + size:
                return True
            self._records += 1
            if self._records > MOST_RECORDS:
                raise HelloRefused(f"the client's part of the TLS handshake came in more than {MOST_RECORDS} records")
            if kind == _HANDSHAKE and not self._has_other:
                self._message += held[begin : begin + size]
                self._take_hellos()
            elif self._message:
                raise HelloRefused("another record came in the middle of the client's hello")
            self._at = begin + size
        return True

    def _take_hellos(self) -> None:
        message = self._message
        while message:
            if message[0] != _CLIENT_HELLO:
                self._has_other = True
                message.clear()
                return
            if len(message) < _MESSAGE_HEAD_BYTES:
                return
            size = int.from_bytes(message[1:_MESSAGE_HEAD_BYTES], "big")
            if size > MOST_HELLO_BYTES:
                raise HelloRefused(f"the client's hello announces {size} bytes, more than {MOST_HELLO_BYTES}")
            end = _MESSAGE_HEAD_BYTES + size
            if len(message) < end:
                return
            self.offers_1_3 = _check(bytes(message[_MESSAGE_HEAD_BYTES:end]))
            del message[:end]


def _check(hello: bytes) -> bool:
    """Whether it offers TLS 1.3. Raises: HelloRefused, also for one that cannot be read."""
    offers_1_3 = False
    for kind, content in _extensions(hello):
        if kind == _VERSIONS:
            offers_1_3 = any(content[at : at + 2] == _TLS_1_3 for at in range(1, len(content), 2))
        if kind == _KEY_SHARE and any(group in _FINITE_FIELDS for group in _groups(content)):
            raise HelloRefused("the client asks for Diffie-Hellman over a finite field: set X25519 or P-256 there")
    return offers_1_3


def _extensions(hello: bytes) -> list[tuple[int, bytes]]:
    _, rest = _split(hello[34:], 1)  # after version and random: the session's id
    _, rest = _split(rest, 2)  # ciphers
    _, rest = _split(rest, 1)  # compressions
    if not rest:
        return []
    left, _ = _split(rest, 2)
    found: list[tuple[int, bytes]] = []
    while left:
        kind, left = left[:2], left[2:]
        content, left = _split(left, 2)
        found.append((int.from_bytes(kind, "big"), content))
    return found


def _groups(key_share: bytes) -> list[int]:
    left, _ = _split(key_share, 2)
    found: list[int] = []
    while left:
        group, left = left[:2], left[2:]
        _, left = _split(left, 2)
        found.append(int.from_bytes(group, "big"))
    return found


def _split(data: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    """What the size at its begin counts, and what follows. Raises: HelloRefused."""
    end = size_bytes + int.from_bytes(data[:size_bytes], "big")
    if len(data) < max(size_bytes, end):
        raise HelloRefused("the client's hello cannot be read")
    return data[size_bytes:end], data[end:]
