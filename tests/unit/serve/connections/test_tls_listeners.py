"""Listeners with TLS: whole frames in and out, many handshakes, and clients that do not finish theirs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog.event_loop import tls_handshakes, tls_records
from stratalog.event_loop.tls_channel import TlsChannel
from stratalog.model.listeners import Listener, SecurityProtocol
from stratalog.settings.choices import ClientAuth
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog_node.serve.connections.tls_outbox import TlsOutbox
from support.certificates import DAY, Authority
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.stream_client import StreamClient, client_side
from support.tls_in_memory import update_keys
from support.waiting import eventually


class TlsRig(ServeRig):
    """With a listener that speaks TLS."""

    authority: Authority
    address: tuple[str, int]
    folder: Path

    async def connect_tls(self, context: ssl.SSLContext | None = None) -> StreamClient:
        client = await StreamClient.connect(self.address, context or client_side(self.authority))
        self._clients.append(client)
        return client


@asynccontextmanager
async def tls_rig(
    tmp_path: Path, *, auth: ClientAuth = ClientAuth.NONE, is_rsa: bool = False, **more: Any
) -> AsyncIterator[TlsRig]:
    async with TlsRig(tmp_path / "node", **more) as rig:
        rig.authority = Authority()
        rig.folder = rig.authority.issue("server", is_rsa=is_rsa).write_folder(
            tmp_path / "tls", rig.authority.certificate
        )
        identity = TlsIdentity(TlsFiles(str(rig.folder)), TlsRules(auth))
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        rig.address = listener.getsockname()
        rig.server.open(
            listener, Listener("secure", "127.0.0.1", rig.address[1]), SecurityProtocol.SSL, lambda: identity.server
        )
        yield rig


async def test_batches_of_all_sizes_go_in_and_come_out_as_they_were(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = await rig.connect_tls()
        values = [bytes([n % 251]) * size for n, size in enumerate((1, 100, 16_383, 16_384, 16_385, 70_000, 900_000))]
        for value in values:
            await client.write(client.produce_frame("flights", batch_of(value)))
            assert (await client.produced()).error_code == 0
        assert await rig.read_values(shard) == values
        got = b""
        offset = 0
        while offset < len(values):
            await client.write(client.fetch_frame("flights", offset, max_bytes=2_000_000))
            (fetched,) = await client.fetched()
            assert fetched.error_code == 0 and fetched.records
            got += fetched.records
            offset += sum(value in fetched.records for value in values[offset:])
        assert all(value in got for value in values)
        client.close()
        await rig.nothing_is_held()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_spoken(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with tls_rig(tmp_path) as rig:
        await rig.shard_of()
        context = client_side(rig.authority)
        context.minimum_version = context.maximum_version = version
        client = await rig.connect_tls(context)
        await client.write(client.produce_frame("flights", batch_of(b"value")))
        assert (await client.produced()).base_offset == 0


@pytest.mark.parametrize("cipher", ["AES128-SHA", "AES256-GCM-SHA384", "ECDHE-RSA-AES128-SHA", "aNULL", "eNULL"])
async def test_a_client_that_has_only_weak_ciphers_is_refused(tmp_path: Path, cipher: str) -> None:
    """Without forward secrecy, with SHA-1, without a certificate, without encryption."""
    async with tls_rig(tmp_path, is_rsa=True) as rig:
        context = client_side(rig.authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{cipher}:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await rig.connect_tls(context)
        await eventually(lambda: rig.server.stats.handshakes_failed == 1)


async def test_an_older_version_of_tls_is_refused(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        context = client_side(rig.authority)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await rig.connect_tls(context)
        await eventually(lambda: rig.server.stats.handshakes_failed == 1)


async def test_many_frames_in_few_records_are_answered_in_order(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        await rig.shard_of()
        client = await rig.connect_tls()
        count = 600
        await client.write(b"".join(client.produce_frame("flights", batch_of(b"%d" % n)) for n in range(count)))
        offsets = [(await client.produced()).base_offset for _ in range(count)]
        assert offsets == list(range(count))
        client.close()
        await rig.nothing_is_held()


async def test_what_a_client_sends_together_with_the_end_of_its_handshake_is_answered(tmp_path: Path) -> None:
    """No event of the socket follows then."""
    async with tls_rig(tmp_path) as rig:
        await rig.shard_of()
        loop = asyncio.get_running_loop()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_side(rig.authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        sock = socket.create_connection(rig.address)
        sock.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        await loop.sock_sendall(sock, outgoing.read())
        while True:
            incoming.write(await loop.sock_recv(sock, 1 << 16))
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        frames = StreamClient(asyncio.StreamReader(), None)  # type: ignore[arg-type]  # its frames alone
        tls.write(frames.produce_frame("flights", batch_of(b"value")))
        await loop.sock_sendall(sock, outgoing.read())
        async with asyncio.timeout(10):
            incoming.write(await loop.sock_recv(sock, 1 << 16))
        assert tls.read(4)
        sock.close()


async def test_a_farewell_says_that_nothing_was_cut_off(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        context = client_side(rig.authority)

        def read_to_end() -> bytes:
            plain = socket.create_connection(rig.address)
            with context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as sock:
                sock.sendall(b"\x7f\xff\xff\xff")  # a frame above every limit
                return sock.recv(1)

        assert await asyncio.to_thread(read_to_end) == b""
        assert rig.server.stats.closed_for_fault == 1


async def test_answers_to_a_client_that_reads_nothing_are_bounded(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        await rig.shard_of()
        client = await rig.connect_tls()
        await client.write(client.produce_frame("flights", batch_of(b"x" * 900_000)))
        await client.produced()
        client._writer.transport.pause_reading()  # type: ignore[attr-defined]
        frame = client.fetch_frame("flights", 0)
        for _ in range(40):
            await client.write(frame)
        (connection,) = rig.server._connections
        await eventually(lambda: connection._out.size_bytes > 0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection._out.size_bytes + connection._held_bytes < 8 << 20
        client._writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(40):
            (fetched,) = await client.fetched()
            assert len(fetched.records) > 900_000
        client.close()
        await rig.nothing_is_held()


# Handshakes ---------------------------------------------------------------------------------------------------------
async def test_hundreds_of_clients_at_once_all_get_in(tmp_path: Path) -> None:
    async with tls_rig(tmp_path) as rig:
        await rig.shard_of()
        context = client_side(rig.authority)
        clients = await asyncio.gather(*(rig.connect_tls(context) for _ in range(200)))
        for client in clients:
            await client.write(client.produce_frame("flights", batch_of(b"value")))
        offsets = [(await client.produced()).base_offset for client in clients]
        assert sorted(offsets) == list(range(200))
        assert rig.server.stats.handshakes_failed == 0


async def test_a_connection_that_is_closed_while_its_handshake_is_in_the_thread_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_rig(tmp_path) as rig:
        real = tls_handshakes._take_steps
        loop = asyncio.get_running_loop()

        def closing(channels: list[Any]) -> list[str | None]:
            def close() -> None:
                for connection in list(rig.server._connections):
                    connection.close("a test")

            asyncio.run_coroutine_threadsafe(_call(close), loop).result(10)
            return real(channels)

        monkeypatch.setattr(tls_handshakes, "_take_steps", closing)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await rig.connect_tls()
        await eventually(lambda: rig.server.stats.handshakes == 0 and rig.server.stats.connections == 0)


async def _call(action: Any) -> None:
    action()


@pytest.mark.fault("handshakes-not-finished")
async def test_handshakes_that_are_not_finished_do_not_take_all_places_of_clients(tmp_path: Path) -> None:
    """As many as `max.connections` kept out every client, for as long as they were begun again."""
    async with tls_rig(tmp_path, max_connections=5) as rig:
        await rig.shard_of()
        begun = [await asyncio.open_connection(*rig.address) for _ in range(5)]
        await eventually(lambda: rig.server.stats.handshakes == 5)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await rig.connect_tls()
        assert (rig.server.stats.handshakes, rig.server.stats.turned_away["full"]) == (5, 1), "each may take a second"
        rig.steady.now_ms += tls_handshakes.GRACE_MS + 1
        rig.server.turn.read_clocks()
        for number in range(3):
            client = await rig.connect_tls()
            await client.write(client.produce_frame("flights", batch_of(b"value")))
            assert (await client.produced()).base_offset == number
        assert (rig.server.stats.handshakes, rig.server.stats.handshakes_failed) == (2, 3)
        for _, writer in begun:
            writer.close()


# Certificates of clients --------------------------------------------------------------------------------------------
async def test_a_client_is_named_by_its_certificate(tmp_path: Path) -> None:
    async with tls_rig(tmp_path, auth=ClientAuth.REQUIRED, ssl_principal_mapping_rules="RULE:^CN=(.*?)$/$1/U") as rig:
        await rig.connect_tls(client_side(rig.authority, rig.authority.issue("alice"), tmp_path / "alice"))
        await eventually(lambda: rig.server.stats.handshakes == 0 and rig.server.stats.connections == 1)
        (connection,) = rig.server._connections
        assert str(connection.info.principal) == "User:ALICE"


async def test_a_client_whose_certificate_gives_no_name_is_closed(tmp_path: Path) -> None:
    async with tls_rig(tmp_path, auth=ClientAuth.REQUIRED, ssl_principal_mapping_rules="RULE:CN=bob/bob/") as rig:
        client = await rig.connect_tls(client_side(rig.authority, rig.authority.issue("alice"), tmp_path / "alice"))
        assert await client.is_closed()
        assert rig.server.stats.closed_for_fault == 1


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
async def test_a_client_without_a_certificate_of_the_authority_is_refused(tmp_path: Path, kind: str) -> None:
    async with tls_rig(tmp_path, auth=ClientAuth.REQUIRED) as rig:
        own = {
            "none": None,
            "foreign": Authority().issue("alice"),
            "expired": rig.authority.issue("alice", begins=-2 * DAY, ends=-DAY),
        }[kind]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client = await rig.connect_tls(client_side(rig.authority, own, tmp_path / "own"))
            await client.write(b"\0\0\0\0")
            await client.read_frame()
        await eventually(lambda: rig.server.stats.handshakes_failed == 1)


async def test_a_client_may_come_without_a_certificate_where_one_is_only_requested(tmp_path: Path) -> None:
    async with tls_rig(tmp_path, auth=ClientAuth.REQUESTED) as rig:
        await rig.connect_tls()
        await eventually(lambda: rig.server.stats.handshakes == 0 and rig.server.stats.connections == 1)
        (connection,) = rig.server._connections
        assert str(connection.info.principal) == "User:ANONYMOUS"


async def test_what_lies_on_the_disk_comes_out_as_it_was(tmp_path: Path) -> None:
    """A large read of a file goes to plain sockets without passing through the process; here it is encrypted."""
    async with tls_rig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = await rig.connect_tls()
        values = [bytes([n]) * 300_000 for n in range(1, 6)]
        for value in values:
            await client.write(client.produce_frame("flights", batch_of(value)))
            await client.produced()
        await client.write(client.fetch_frame("flights", 0, partition_max_bytes=8 << 20))
        (over_tls,) = await client.fetched()
        plain = rig.connect()
        await plain.write(plain.fetch_frame("flights", 0, partition_max_bytes=8 << 20))
        (over_plain,) = await plain.fetched()
        assert over_tls.records == over_plain.records and len(over_tls.records) > 1_500_000
        assert await rig.read_values(shard) == values
        client.close()
        plain.close()
        await rig.nothing_is_held()


@asynccontextmanager
async def channel_pair(tmp_path: Path) -> AsyncIterator[tuple[TlsChannel, ssl.SSLObject, ssl.MemoryBIO, socket.socket]]:
    """A channel whose handshake is done, and its client."""
    authority = Authority()
    folder = authority.issue("server").write_folder(tmp_path / "tls", authority.certificate)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel = TlsChannel(ours, TlsIdentity(TlsFiles(str(folder)), TlsRules()).server)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    for _ in range(3):
        for side in (client, channel.tls):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            channel._incoming.write(outgoing.read())
            incoming.write(channel._outgoing.read())
    try:
        yield channel, client, outgoing, theirs
    finally:
        channel.close()
        theirs.close()


async def test_a_flood_of_key_updates_ends_the_connection_before_it_takes_the_loop(tmp_path: Path) -> None:
    """10,000 of them in one read kept the event loop busy for 785 ms."""
    async with channel_pair(tmp_path) as (channel, client, outgoing, theirs):
        update_keys(client, 3_000)
        theirs.sendall(outgoing.read())
        with pytest.raises(OSError, match="too many key updates"):
            channel.recv_into(memoryview(bytearray(256 << 10)))


async def test_a_byte_of_data_now_and_then_buys_no_more_key_updates(tmp_path: Path) -> None:
    """It took the count back to nothing: 256 KiB of the two took the event loop for 785 ms, again and again."""
    async with channel_pair(tmp_path) as (channel, client, outgoing, theirs):
        view = memoryview(bytearray(64 << 10))
        with pytest.raises(OSError, match="too many key updates"):
            for _ in range(50):
                update_keys(client, 10)
                client.write(b"x")
                theirs.sendall(outgoing.read())
                assert channel.recv_into(view) == 1


async def test_data_in_the_smallest_records_is_read(tmp_path: Path) -> None:
    async with channel_pair(tmp_path) as (channel, client, outgoing, theirs):
        view, got = memoryview(bytearray(1_000)), b""
        update_keys(client, 5)
        for number in range(1_000):
            client.write(bytes([number % 251]))
        client.write(b"x" * 40_000)
        theirs.sendall(outgoing.read())
        while len(got) < 41_000:
            with suppress(BlockingIOError):
                got += bytes(view[: channel.recv_into(view)])
        assert got == bytes(number % 251 for number in range(1_000)) + b"x" * 40_000


async def test_answers_to_key_updates_that_nobody_reads_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_records, "MOST_WITHOUT_DATA", 100_000)
    async with channel_pair(tmp_path) as (channel, client, outgoing, theirs):
        with pytest.raises(BlockingIOError):
            while True:
                channel._sock.send(bytes(1 << 16))
        view = memoryview(bytearray(64 << 10))
        with pytest.raises(OSError, match="does not read the answers"):
            for _ in range(10):
                update_keys(client, 500)
                client.write(b"data")
                theirs.sendall(outgoing.read())
                assert channel.recv_into(view) == 4


async def test_a_few_key_updates_leave_the_bytes_that_are_counted_right(tmp_path: Path) -> None:
    """Each took its answer's bytes off the size of what waits: then later answers waited for ever."""
    async with channel_pair(tmp_path) as (channel, client, outgoing, theirs):
        outbox = TlsOutbox(channel)
        with pytest.raises(BlockingIOError):
            while True:
                channel._sock.send(bytes(1 << 16))
        update_keys(client, 20)
        client.write(b"data")
        theirs.sendall(outgoing.read())
        assert channel.recv_into(memoryview(bytearray(16 << 10))) == 4
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
        outbox.add([b"answer"], None)
        outbox.send(channel, 1 << 20)
        while outbox:
            outbox.send(channel, 1 << 20)
        assert (outbox.size_bytes, channel.unsent_bytes, len(outbox._entries)) == (0, 0, 0)


async def test_a_fault_with_one_certificate_holds_up_no_other_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_rig(tmp_path) as rig:
        real, faults = rig.server._handshakes._on_open, iter([True])

        def fault(connection: Any, channel: Any) -> None:
            if next(faults, False):
                raise RuntimeError("a fault")
            real(connection, channel)

        monkeypatch.setattr(rig.server._handshakes, "_on_open", fault)
        clients = await asyncio.gather(*(rig.connect_tls() for _ in range(5)))
        await eventually(lambda: rig.server.stats.handshakes == 0 and rig.server.stats.connections == 4)
        for client in clients:
            client.close()
