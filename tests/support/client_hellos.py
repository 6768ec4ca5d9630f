"""First messages of TLS clients, byte by byte, as no library sends them."""

from __future__ import annotations

import ctypes
import ssl
from collections.abc import Iterable
from pathlib import Path

import pytest

P_256, X25519, FFDHE8192 = 0x0017, 0x001D, 0x0104
KEY_BYTES = {P_256: 65, X25519: 32, FFDHE8192: 1_024}
_SET_GROUPS = 92


def client_hello(groups: Iterable[int], shares: Iterable[int], *, is_early: bool = False, more: bytes = b"") -> bytes:
    """A message of TLS 1.3 without its record. `groups` it supports; of each of `shares` it has a key, which is noise;
    `is_early`: it says that it sends data before the handshake is done; `more`: further extensions."""
    extensions = _extension(43, _sized(1, b"\x03\x04")) + _extension(13, _sized(2, b"\x04\x03\x08\x04"))
    extensions += _extension(10, _sized(2, b"".join(one.to_bytes(2, "big") for one in groups)))
    keys = b"".join(one.to_bytes(2, "big") + _sized(2, b"\x04" + b"\x07" * (KEY_BYTES[one] - 1)) for one in shares)
    extensions += _extension(51, _sized(2, keys)) + (_extension(42, b"") if is_early else b"") + more
    body = b"\x03\x03" + b"r" * 32 + _sized(1, b"s" * 32) + _sized(2, b"\x13\x01") + _sized(1, b"\0")
    return b"\x01" + _sized(3, body + _sized(2, extensions))


def server_name(size_bytes: int) -> bytes:
    """An extension."""
    return _extension(0, _sized(2, b"\0" + _sized(2, b"a" * size_bytes)))


def in_records(message: bytes, size_bytes: int = 16 << 10) -> bytes:
    pieces = (message[at : at + size_bytes] for at in range(0, len(message), size_bytes))
    return b"".join(b"\x16\x03\x01" + _sized(2, piece) for piece in pieces)


def real_hello(client: ssl.SSLContext, groups: str = "") -> bytes:
    """As OpenSSL sends it. `groups`: those that it offers, a key of the first."""
    outgoing = ssl.MemoryBIO()
    tls = client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    if groups:
        offer_groups(tls, groups)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def offer_groups(tls: ssl.SSLObject, groups: str) -> None:
    """Python has no call for it: OpenSSL's own."""
    openssl = loaded_openssl()
    control = openssl.SSL_ctrl
    control.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
    assert control(pointer_of(tls), _SET_GROUPS, 0, groups.encode()) == 1


def loaded_openssl() -> ctypes.CDLL:
    """The library that `ssl` has loaded. Wheels bring others, whose names have a hash behind `libssl`."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next((line.split()[-1] for line in maps if "/libssl.so" in line), None)
    if library is None:
        pytest.skip("OpenSSL is not a library of its own here")
    return ctypes.CDLL(library)


def pointer_of(tls: ssl.SSLObject) -> ctypes.c_void_p:
    pointer_bytes = ctypes.sizeof(ctypes.c_void_p)
    # PyObject_HEAD, the socket, then SSL*.
    return ctypes.c_void_p.from_address(id(tls._sslobj) + 3 * pointer_bytes)  # type: ignore[attr-defined]


def _sized(size_bytes: int, content: bytes) -> bytes:
    return len(content).to_bytes(size_bytes, "big") + content


def _extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + _sized(2, content)
