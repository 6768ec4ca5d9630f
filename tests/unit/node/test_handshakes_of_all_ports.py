"""TLS handshakes at every kind of port: clients that do not finish theirs, or send something else, hold up no other."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from stratalog.event_loop import tls_handshakes, tls_transports
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.settings.choices import ClientAuth
from support.certificates import Authority
from support.client_hellos import FFDHE8192, client_hello, in_records
from support.stream_client import client_side
from support.tls_in_memory import shaken
from support.tls_ports import API_VERSIONS, PORTS, Port, tls_port, until_closed
from support.waiting import eventually

HEAD_OF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"
HELLO_WITHOUT_END = b"\x16\x03\x01\x10\x00\x01\x00\x1f\xff" + bytes(4_092)
"""One that is announced as large as it may be."""
HANDSHAKE_FAILURE = b"\x15\x03\x03\0\x02\x02\x28"


@pytest.fixture(params=PORTS)
async def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    monkeypatch.setattr(tls_transports, "_CHECK_S", 0.05)
    async with tls_port(request.param, tmp_path) as made:
        await made.answers()
        yield made


@pytest.mark.fault("handshakes-not-finished")
async def test_handshakes_that_are_not_finished_end_and_hold_up_no_other_client(port: Port) -> None:
    begun = [await port.begin(HEAD_OF_A_HELLO if number % 2 else b"") for number in range(50)]
    await eventually(lambda: port.stats.handshakes == 50)
    await port.answers()
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (50, 0)
    port.pass_time()
    await eventually(lambda: port.stats.handshakes == 0)
    assert port.stats.handshakes_failed == 50
    for reader in begun:
        assert await reader.read() == b""


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_time_in_which_a_handshake_waits_for_the_port_does_not_count(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 clients at once wait for the thread for seconds, and most were ended as if they were silent."""
    real, may_go_on = tls_handshakes._take_steps, threading.Event()

    def held(channels: list[Any]) -> list[str | None]:
        assert may_go_on.wait(60)
        return real(channels)

    monkeypatch.setattr(tls_handshakes, "_take_steps", held)
    served = [asyncio.create_task(port.answers()) for _ in range(20)]
    try:
        await eventually(lambda: port.handshakes._worker is not None and _waiting(port) == 4)
        port.pass_time()
        port.handshakes.end_overdue()
        assert not port.handshakes.make_room() and port.stats.handshakes_failed == 0
    finally:
        may_go_on.set()
    await asyncio.gather(*served)


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_hello_that_the_port_has_not_read_keeps_its_handshake_from_being_overdue(port: Port) -> None:
    reader = await port.begin()
    await eventually(lambda: port.stats.handshakes == 1)
    port._opened[-1].write(port.hello())  # sent before this returns
    port.pass_time()
    port.handshakes.end_overdue()
    assert not port.handshakes.make_room() and port.stats.handshakes_failed == 0
    async with asyncio.timeout(20):
        assert await reader.readexactly(3) == b"\x16\x03\x03", "the server's hello"


@pytest.mark.fault("handshakes-not-finished")
async def test_a_client_that_sends_its_hello_bit_by_bit_is_late_whatever_lies_unread(port: Port) -> None:
    await port.begin(HEAD_OF_A_HELLO)
    await eventually(lambda: any(one.received_bytes for one in port.handshakes._under_way.values()))
    port._opened[-1].write(b"\0")
    port.pass_time()
    assert port.handshakes.make_room() and port.stats.handshakes_failed == 1


@pytest.mark.fault("handshakes-not-finished")
async def test_one_address_with_too_many_handshakes_ends_its_own(port: Port) -> None:
    port.handshakes._most_at_once = 5
    begun = [await port.begin() for _ in range(8)]
    await eventually(lambda: port.stats.handshakes_failed == 3)
    assert port.stats.handshakes == 5 and port.stats.turned_away[TurnedAway.HANDSHAKES] == 3
    for reader in begun[:3]:  # the oldest ones
        assert await reader.read() == b""
    await port.answers()


@pytest.mark.fault("handshakes-not-finished")
async def test_a_hello_that_comes_byte_by_byte_is_answered_and_holds_up_no_other_client(port: Port) -> None:
    hello = port.hello()
    reader = await port.begin()
    writer = port._opened[-1]
    for number, byte in enumerate(hello):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
        if number == len(hello) // 2:
            await port.answers()
    async with asyncio.timeout(20):
        assert await reader.readexactly(3) == b"\x16\x03\x03", "the server's hello"
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (1, 0)


@pytest.mark.fault("handshakes-not-finished")
async def test_a_hello_that_is_cut_off_anywhere_ends_its_connection_alone(port: Port) -> None:
    hello = port.hello()
    cuts = [*range(12), *range(12, len(hello), 40), len(hello)]
    for cut in cuts:
        await port.begin(hello[:cut])
        port._opened[-1].close()
    await eventually(lambda: port.stats.handshakes_failed == len(cuts))
    assert port.stats.handshakes == 0
    await port.answers()


@pytest.mark.fault("handshakes-not-finished")
async def test_a_handshake_of_too_many_bytes_ends(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshakes, "_MOST_BYTES", 3_000)
    structlog.reset_defaults()  # an earlier test or command in this process may have set a level above this line's
    with capture_logs() as logged:
        reader = await port.begin(HELLO_WITHOUT_END)
        await until_closed(reader)
        await eventually(lambda: any("more than 3000 bytes came" in str(one) for one in logged))
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


@pytest.mark.fault("hellos-that-cost-much")
@pytest.mark.parametrize("is_second", [False, True], ids=["first", "second"])
async def test_a_hello_whose_answer_is_dear_is_refused_before_openssl_has_it(port: Port, is_second: bool) -> None:
    """1.3 KB of noise cost 120 ms of the thread: ten clients a second kept all others out."""
    reader = await port.begin()
    if is_second:
        await port.send(in_records(client_hello([FFDHE8192], [], is_early=True)))
        async with asyncio.timeout(20):
            head = await reader.readexactly(5)
            assert (await reader.readexactly(int.from_bytes(head[3:])))[0] == 2, "the server asks for another hello"
        await port.send(b"\x17\x03\x03\0\x20" + bytes(32))
    await port.send(in_records(client_hello([FFDHE8192], [FFDHE8192])))
    assert (await until_closed(reader)).endswith(HANDSHAKE_FAILURE)
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


@pytest.mark.fault("hellos-that-cost-much")
async def test_a_hello_that_announces_131_kib_is_refused(port: Port) -> None:
    """OpenSSL took as much memory for nine bytes."""
    reader = await port.begin(b"\x16\x03\x01\0\x04\x01" + (131_396).to_bytes(3, "big"))
    assert await until_closed(reader) == HANDSHAKE_FAILURE
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    assert port.stats.turned_away[TurnedAway.HANDSHAKE] == 1


@pytest.mark.fault("handshakes-not-finished")
async def test_many_hellos_of_one_address_delay_none_of_another(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    real, may_go_on, steps = tls_handshakes._take_steps, threading.Event(), list[list[str]]()

    def noted(channels: list[Any]) -> list[str | None]:
        steps.append([one.sock.getpeername()[0] for one in channels])
        assert may_go_on.wait(60)
        return real(channels)

    monkeypatch.setattr(tls_handshakes, "_take_steps", noted)
    hello = port.hello()
    try:
        for number in range(50):
            await port.begin(hello)
            await eventually(lambda number=number: len(steps) > 0 and _waiting(port) == number)
        reader = await port.begin(hello, "127.0.0.2")
        await eventually(lambda: _waiting(port) == 50)
    finally:
        may_go_on.set()
    async with asyncio.timeout(20):
        assert await reader.readexactly(3) == b"\x16\x03\x03", "the server's hello"
    assert "127.0.0.2" in steps[1], "the next steps after those that ran already"


def _waiting(port: Port) -> int:
    return sum(map(len, port.handshakes._ready._of.values()))


@pytest.mark.parametrize("size", [0x4801, 0xFFFF], ids=["just", "far"])
async def test_a_record_that_is_longer_than_any_may_be_ends_its_connection_alone(port: Port, size: int) -> None:
    reader = await port.begin(b"\x16\x03\x01" + size.to_bytes(2, "big") + bytes(2_000))
    await until_closed(reader)
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


@pytest.mark.parametrize("data", [API_VERSIONS, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 4_096])
async def test_a_client_that_speaks_no_tls_is_closed_and_the_log_says_what_to_do(port: Port, data: bytes) -> None:
    with capture_logs() as logged:
        reader = await port.begin(data)
        await until_closed(reader)
        await eventually(lambda: any(port.words in str(one) for one in logged))
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    assert sum(port.stats.turned_away.values()) == port.stats.turned_away[TurnedAway.NO_TLS] == 1
    await port.answers()


@pytest.mark.fault("refused-clients-fill-log")
async def test_any_number_of_clients_that_speak_no_tls_costs_few_lines_and_each_is_counted(port: Port) -> None:
    with capture_logs() as logged:
        for _ in range(30):
            await until_closed(await port.begin(API_VERSIONS))
        await eventually(lambda: port.stats.turned_away[TurnedAway.NO_TLS] == 30)
    assert sum(port.words in str(one) for one in logged) == 20
    assert sum("further lines" in str(one) for one in logged) == 1


def _shake_hands(address: tuple[str, int], client: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSocket:
    sock = socket.create_connection(address)
    return client.wrap_socket(sock, server_hostname="127.0.0.1", session=session)


@pytest.mark.fault("sessions-are-kept")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_is_kept_or_resumed(port: Port, version: ssl.TLSVersion) -> None:
    """With TLS 1.2 they were, with all certificates of their clients, as OpenSSL does by default."""
    client = port.client()
    client.minimum_version = client.maximum_version = version
    session = None
    for _ in range(3):
        with await asyncio.to_thread(_shake_hands, port.address, client, session) as sock:
            assert sock.version() == version.name.replace("_", ".") and not sock.session_reused
            session = sock.session
    await port.serve(client)
    served = port.identity.server.session_stats()
    assert served["number"] == 0 and served["hits"] == 0


@pytest.mark.fault("sessions-are-kept")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", PORTS)
async def test_a_client_shows_few_certificates(tmp_path: Path, kind: str, version: ssl.TLSVersion) -> None:
    """Those that it shows are kept as long as its connection lasts: 100 of them took 0.5 MiB, whoever issued them."""
    async with tls_port(kind, tmp_path, ClientAuth.REQUIRED) as port:
        own, useless = port.authority.issue("alice"), Authority().certificate

        def client(count: int) -> ssl.SSLContext:
            shown = replace(own, certificate=own.certificate + useless * (count - 1))
            made = client_side(port.authority, shown, tmp_path / "alice")
            made.minimum_version = made.maximum_version = version
            return made

        await port.serve(client(10))
        for count, failed in ((11, 1), (100, 2), (400, 3), (3_000, 4)):  # up to 1 MiB
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await port.serve(client(count))
            await eventually(lambda failed=failed: port.stats.handshakes_failed == failed)
        await port.serve(client(1))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await port.serve(port.client())


async def test_many_handshakes_at_once_are_all_finished(port: Port) -> None:
    contexts = [port.client() for _ in range(4)]
    done = await asyncio.gather(*(shaken(port.address, contexts[number % 4]) for number in range(60)))
    await eventually(lambda: port.stats.handshakes == 0)
    assert port.stats.handshakes_failed == 0
    for sock, _ in done:
        sock.close()


async def test_a_port_with_handshakes_under_way_closes(port: Port) -> None:
    """The fixture closes it; a connection that it left open would hang here."""
    await port.begin(HEAD_OF_A_HELLO)
    await eventually(lambda: port.stats.handshakes == 1)
