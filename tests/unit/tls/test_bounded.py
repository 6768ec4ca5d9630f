"""What a hostile server may cost the process that has connected to it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from stratalog.tls.contexts import MembersContext, TlsRules, client_context
from stratalog.tls.material import TlsMaterial
from support.certificates import Authority
from support.tls_in_memory import End, connected, update_keys


@pytest.fixture(params=["by the name of its host", "as a member"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[End, End]:
    authority = Authority()
    folder = authority.issue_member("node/2").write_folder(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    material = TlsMaterial(authorities=authority.certificate)
    is_member = request.param == "as a member"
    members = MembersContext(material, TlsRules()).to(lambda certificate: None)
    return connected(members if is_member else client_context(material, TlsRules()), server)


def _read_all(end: End) -> bytes:
    got = bytearray()
    try:
        while True:
            got += end.tls.read(1 << 18)
    except ssl.SSLWantReadError:
        return bytes(got)


def test_a_flood_of_key_updates_ends_before_all_of_them_are_read(ends: tuple[End, End]) -> None:
    """One read of 256 KiB of them took 785 ms of the event loop."""
    client, server = ends
    update_keys(server.tls, 1_000)
    client.incoming.write(server.outgoing.read())
    with pytest.raises(OSError, match="too many key updates"):
        client.tls.read(1 << 16)
    assert client.incoming.pending or client.tls._rest  # type: ignore[attr-defined]  # most of it was not looked at
    assert client.outgoing.pending < 200 * 30, "answers to the updates that were read"


def test_a_byte_of_data_now_and_then_buys_no_more_key_updates(ends: tuple[End, End]) -> None:
    client, server = ends
    with pytest.raises(OSError, match="too many key updates"):
        for _ in range(200):
            update_keys(server.tls, 20)
            server.tls.write(b"x")
            client.incoming.write(server.outgoing.read())
            assert _read_all(client) == b"x"


def test_data_in_the_smallest_records_and_rare_key_updates_come_through(ends: tuple[End, End]) -> None:
    client, server = ends
    sent = bytearray()
    for number in range(300):
        piece = bytes([number % 251]) * (40_000 if number % 30 == 0 else 1)
        server.tls.write(piece)
        sent += piece
        if number % 10 == 0:
            update_keys(server.tls, 1)
    client.incoming.write(server.outgoing.read())
    assert _read_all(client) == sent


def test_bytes_that_come_one_by_one_come_through(ends: tuple[End, End]) -> None:
    client, server = ends
    sent = bytes(range(256)) * 20
    server.tls.write(sent)
    got = b""
    for byte in server.outgoing.read():
        client.incoming.write(bytes([byte]))
        got += _read_all(client)
    assert got == sent


def test_a_transport_that_reads_while_something_is_pending_reads_all(ends: tuple[End, End]) -> None:
    """As uvloop's does, which never asks for what is not there."""
    client, server = ends
    server.tls.write(bytes(300_000))
    client.incoming.write(server.outgoing.read())
    got = 0
    while client.incoming.pending or client.tls.pending():
        got += len(client.tls.read(1 << 18))
    assert got == 300_000


def test_the_end_of_the_connection_is_seen(ends: tuple[End, End]) -> None:
    client, server = ends
    server.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        server.tls.unwrap()
    client.incoming.write(server.outgoing.read())
    client.incoming.write_eof()
    assert client.tls.read(100) == b"last"
    assert client.tls.read(100) == b""
