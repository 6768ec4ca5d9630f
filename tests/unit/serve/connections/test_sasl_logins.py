"""Logins by SASL on a listener: which clients get in, and what all others may send."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.sasl.scram import credential_from, salted
from stratalog.model.listeners import Listener, SecurityProtocol
from stratalog.model.scram import ScramCredential, ScramMechanism
from stratalog_node.serve.connections import logins
from support import kafka_oracle
from support.answers_during_login import answer_of, compared, kafkas_answers, request_frame
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.stream_client import StreamClient
from support.tokens import Issuer
from support.waiting import eventually

SHA_512 = ScramMechanism.SCRAM_SHA_512
PASSWORD = "sesame"


class SaslRig(ServeRig):
    address: tuple[str, int]
    users: dict[tuple[str, ScramMechanism], ScramCredential]

    def add_user(self, name: str, password: str = PASSWORD, mechanism: ScramMechanism = SHA_512) -> None:
        salted_password = salted(mechanism, password, b"salt", 4_096)
        self.users[name, mechanism] = credential_from(mechanism, salted_password, b"salt", 4_096)

    async def client(self) -> SaslClient:
        client = await SaslClient.connect(self.address)
        self._clients.append(client)
        return client


class SaslClient(StreamClient):
    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        await self.write(self.frame(key, version, **fields))
        return kafka_oracle.decode_response(key, version, await self.read_frame())

    async def choose(self, mechanism: str) -> Any:
        return await self.ask(17, 1, mechanism=mechanism)

    async def token(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(36, version, auth_bytes=token)

    async def rest(self) -> bytes:
        """What comes before the node closes the connection."""
        async with asyncio.timeout(10):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    async def log_in(self, name: str, password: str = PASSWORD, mechanism: ScramMechanism = SHA_512) -> Any:
        """The answer to the last token that was sent."""
        chosen = await self.choose(mechanism.mechanism_name)
        assert chosen.error_code == 0, chosen
        steps = ScramAuthenticator(
            loop=None,
            sasl_plain_password=password,
            sasl_plain_username=name,
            sasl_mechanism=mechanism.mechanism_name,
        )._authenticator
        first = await self.token(next(steps)[0])
        if first.error_code:
            return first
        return await self.token(steps.send(bytes(first.auth_bytes))[0])

    async def can_write(self) -> bool:
        try:
            await self.write(self.produce_frame("flights", batch_of(b"value")))
            return (await self.produced()).error_code == 0
        except (ConnectionError, OSError):
            return False


@asynccontextmanager
async def sasl_rig(
    tmp_path: Path, protocol: SecurityProtocol = SecurityProtocol.SASL_PLAINTEXT, **more: Any
) -> AsyncIterator[SaslRig]:
    more = {"connection_failed_authentication_delay_ms": 0} | more
    async with SaslRig(tmp_path, **more) as rig:
        rig.users = {}
        rig.server.logins._find = lambda name, mechanism: rig.users.get((name, mechanism))
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        rig.address = listener.getsockname()
        rig.server.open(listener, Listener("users", "127.0.0.1", rig.address[1]), protocol)
        await rig.shard_of()
        rig.add_user("alice")
        yield rig


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_a_user_with_a_scram_credential_gets_in_and_is_named(tmp_path: Path, mechanism: ScramMechanism) -> None:
    async with sasl_rig(tmp_path) as rig:
        rig.add_user("carol", "pencil", mechanism)
        client = await rig.client()
        versions = await client.ask(18, 0)
        assert versions.error_code == 0
        done = await client.log_in("carol", "pencil", mechanism)
        assert (done.error_code, done.session_lifetime_ms) == (0, 0)
        assert bytes(done.auth_bytes).startswith(b"v=")
        (connection,) = rig.server._connections
        assert str(connection.info.principal) == "User:carol"
        assert await client.can_write()
        assert (rig.server.logins.stats.succeeded, rig.server.logins.stats.failed) == (1, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_password_in_clear_is_compared_with_the_credential(tmp_path: Path, version: int) -> None:
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms="PLAIN", sasl_plain_unencrypted_enable=True) as rig:
        client = await rig.client()
        assert (await client.choose("PLAIN")).error_code == 0
        done = await client.token(b"\0alice\0sesame", version)
        assert done.error_code == 0
        assert await client.can_write()


async def test_a_password_in_clear_is_not_taken_without_tls(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-512") as rig:
        client = await rig.client()
        refused = await client.choose("PLAIN")
        assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert list(refused.mechanisms) == ["SCRAM-SHA-512"]
        assert await client.is_closed()


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "sesame")])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
async def test_a_wrong_password_and_an_unknown_user_get_the_answer_of_kafka_and_are_closed(
    tmp_path: Path, name: str, password: str, mechanism: str
) -> None:
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms=mechanism, sasl_plain_unencrypted_enable=True) as rig:
        client = await rig.client()
        if mechanism == "PLAIN":
            await client.choose("PLAIN")
            refused = await client.token(f"\0{name}\0{password}".encode())
            words = "Authentication failed: Invalid username or password"
        else:
            refused = await client.log_in(name, password)
            words = (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                "SCRAM-SHA-512"
            )
        assert (refused.error_code, refused.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, words)
        assert await client.is_closed()
        assert rig.server.logins.stats.failed == 1


async def test_a_failed_login_is_answered_later_the_more_of_them_an_address_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds:
            waits.append(seconds)
        await real(0)

    monkeypatch.setattr(logins.asyncio, "sleep", noted)
    async with sasl_rig(tmp_path, connection_failed_authentication_delay_ms=100) as rig:
        for _ in range(5):
            client = await rig.client()
            assert (await client.log_in("alice", "wrong")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert [wait for wait in waits if wait in (0.1, 0.2, 0.4)] == [0.1, 0.1, 0.1, 0.2, 0.4]


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize(("key", "version"), [(3, 9), (36, 2), (18, 0), (0, 9)])
async def test_a_connection_without_a_mechanism_is_closed_at_any_request_of_another_kind(
    tmp_path: Path, key: int, version: int, asks_first: bool
) -> None:
    """Without an answer, as by Kafka 4.3."""
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        if asks_first or key == 18:
            await client.ask(18, 0)
        await client.write(request_frame(key, version))
        assert await client.rest() == b""


@pytest.mark.parametrize(
    ("key", "version"), [(3, 9), (0, 9), (1, 12), (2, 1), (15, 0), (17, 1), (18, 0), (18, 3), (19, 7), (31, 3)]
)
async def test_a_request_of_another_api_between_tokens_gets_kafkas_answer_and_ends_the_connection(
    tmp_path: Path, key: int, version: int
) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        await client.write(request_frame(key, version))
        answer = answer_of(key, version, await client.read_frame())
        assert compared(answer) == compared(answer_of(key, version, kafkas_answers()[key, version]))
        assert await client.rest() == b""
        assert rig.server.logins.stats.failed == 1


async def test_a_request_of_another_api_is_refused_in_a_second_login_too(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, connections_max_reauth_ms=60_000) as rig:
        client = await rig.client()
        await client.log_in("alice")
        rig.steady.now_ms += 40_000
        await eventually(lambda: rig.turn.steady_ms == rig.steady.now_ms)
        await client.choose("SCRAM-SHA-512")
        await client.write(client.produce_frame("flights", batch_of(b"value")))
        assert (await client.produced()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()


@pytest.mark.parametrize("what", ["not served", "too large", "acks=0", "malformed"])
async def test_a_request_without_an_answer_of_its_own_closes_the_connection_between_tokens(
    tmp_path: Path, what: str
) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        data = bytearray(request_frame(3, 9))
        if what == "not served":
            data[6:8] = (99).to_bytes(2, "big")
        elif what == "too large":
            data = bytearray(client.frame(3, 9, topics=[{"name": "t" * 200}] * 100))
        elif what == "acks=0":
            data = bytearray(client.produce_frame("flights", batch_of(b"value"), acks=0))
        else:
            data[-10:] = b"\xff" * 10
        await client.write(bytes(data))
        assert await client.rest() == b""


async def test_versions_in_too_new_a_version_are_refused_in_the_oldest_one_between_tokens(tmp_path: Path) -> None:
    """As by Kafka 4.3."""
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        newer = bytearray(request_frame(18, 3))
        newer[6:8] = (99).to_bytes(2, "big")
        await client.write(bytes(newer))
        assert (await client.read_frame())[8:] == b"\0\x22\0\0\0\0"
        assert await client.rest() == b""


async def test_a_client_that_asks_for_versions_in_too_new_a_version_asks_again(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        newer = bytearray(client.frame(18, 3, client_software_name="a", client_software_version="1"))
        newer[6:8] = (9).to_bytes(2, "big")
        await client.write(bytes(newer))
        assert (
            kafka_oracle.decode_response(18, 0, await client.read_frame()).error_code == ErrorCode.UNSUPPORTED_VERSION
        )
        assert (await client.ask(18, 3, client_software_name="a", client_software_version="1")).error_code == 0
        assert (await client.log_in("alice")).error_code == 0


async def test_a_request_behind_an_unanswered_token_is_refused(tmp_path: Path) -> None:
    """It could rest on rights that the token does not give."""
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms="PLAIN", sasl_plain_unencrypted_enable=True) as rig:
        client = await rig.client()
        await client.choose("PLAIN")
        await client.write(
            client.frame(36, 2, auth_bytes=b"\0alice\0sesame") + client.produce_frame("flights", batch_of(b"value"))
        )
        assert await client.is_closed()
        assert rig.server.logins.stats.succeeded == 0


async def test_a_frame_before_the_login_is_small(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, sasl_server_max_receive_size=4_096) as rig:
        client = await rig.client()
        await client.write((16 << 20).to_bytes(4, "big") + bytes(100))
        assert await client.is_closed()
        client = await rig.client()
        assert (await client.log_in("alice")).error_code == 0
        await client.write(client.produce_frame("flights", batch_of(b"x" * 100_000)))
        assert (await client.produced()).error_code == 0


@pytest.mark.parametrize("token", [b"", b"\xff" * 100, b"n,,n=alice", b"p=tls-unique,,n=alice,r=x"])
async def test_a_token_that_is_none_fails_like_a_wrong_password(tmp_path: Path, token: bytes) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        assert (await client.token(token)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_what_one_login_sent_opens_no_other_connection(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path) as rig:
        steps = ScramAuthenticator(
            loop=None, sasl_plain_password=PASSWORD, sasl_plain_username="alice", sasl_mechanism="SCRAM-SHA-512"
        )._authenticator
        first = next(steps)[0]
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        final = steps.send(bytes((await client.token(first)).auth_bytes))[0]
        assert (await client.token(final)).error_code == 0
        other = await rig.client()
        await other.choose("SCRAM-SHA-512")
        assert (await other.token(first)).error_code == 0
        assert (await other.token(final)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_time_in_which_a_password_waits_to_be_checked_does_not_count(tmp_path: Path) -> None:
    """Many clients that come at once wait for each other."""
    settings = {"sasl_enabled_mechanisms": "PLAIN", "sasl_plain_unencrypted_enable": True}
    async with sasl_rig(tmp_path, connection_read_timeout_ms=1_000, **settings) as rig:
        client, silent = await rig.client(), await rig.client()
        await client.choose("PLAIN")
        rig.server.logins._passwords = asyncio.Semaphore(0)
        asked = asyncio.create_task(client.token(b"\0alice\0" + PASSWORD.encode()))
        await eventually(lambda: any(one.is_busy for one in rig.server.logins._open.values()))
        rig.steady.now_ms += 1_001
        rig.server.logins.end_overdue(rig.steady.now_ms)
        assert await silent.is_closed(), "it has kept the node waiting"
        rig.server.logins._passwords.release()
        assert (await asked).error_code == 0
        assert await client.can_write()


# Again --------------------------------------------------------------------------------------------------------------
async def test_a_login_ends_and_the_next_request_closes_the_connection(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, connections_max_reauth_ms=60_000) as rig:
        client = await rig.client()
        assert (await client.log_in("alice")).session_lifetime_ms == 60_000
        assert await client.can_write()
        rig.steady.now_ms += 60_001
        await eventually(lambda: rig.turn.steady_ms == rig.steady.now_ms)
        assert not await client.can_write()
        assert rig.server.logins.stats.expired == 1


async def test_a_client_that_logs_in_again_stays_connected(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, connections_max_reauth_ms=60_000) as rig:
        client = await rig.client()
        await client.log_in("alice")
        for _ in range(3):
            rig.steady.now_ms += 40_000
            await eventually(lambda: rig.turn.steady_ms == rig.steady.now_ms)
            assert (await client.log_in("alice")).session_lifetime_ms == 60_000
            assert await client.can_write()
        assert len(rig.server._connections) == 1


async def test_a_connection_does_not_become_another_users(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, connections_max_reauth_ms=60_000) as rig:
        rig.add_user("bob")
        client = await rig.client()
        await client.log_in("alice")
        rig.steady.now_ms += 40_000
        await eventually(lambda: rig.turn.steady_ms == rig.steady.now_ms)
        refused = await client.log_in("bob")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_a_connection_without_an_end_cannot_log_in_again_and_stays_open(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        await client.log_in("alice")
        assert (await client.choose("SCRAM-SHA-512")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.token(b"x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.can_write()


async def test_no_secret_is_in_a_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms="PLAIN", sasl_plain_unencrypted_enable=True) as rig:
        client = await rig.client()
        await client.choose("PLAIN")
        await client.token(b"\0alice\0not-the-password")
        assert await client.is_closed()
    logged = "".join(capfd.readouterr())
    assert "login failed" in logged
    assert "not-the-password" not in logged


# Tokens -------------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def token_rig(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[SaslRig, Issuer]]:
    issuer = Issuer(tmp_path / "issuer")
    settings = {
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_plain_unencrypted_enable": True,
        "sasl_oauthbearer_jwks_endpoint_url": issuer.url,
    }
    async with sasl_rig(tmp_path / "node", **(settings | more)) as rig:
        assert rig.server.logins.tokens is not None
        await rig.server.logins.tokens._refresh()
        yield rig, issuer


def bearer(token: str, name: str = "") -> bytes:
    return f"n,{f'a={name}' if name else ''},\x01auth=Bearer {token}\x01\x01".encode()


async def test_a_token_lets_its_user_in_until_it_expires(tmp_path: Path) -> None:
    async with token_rig(tmp_path) as (rig, issuer):
        client = await rig.client()
        await client.choose("OAUTHBEARER")
        done = await client.token(bearer(issuer.token("robot", ends_in_s=300)))
        assert done.error_code == 0 and 290_000 < done.session_lifetime_ms <= 300_000
        assert await client.can_write()
        (connection,) = rig.server._connections
        assert str(connection.info.principal) == "User:robot"
        rig.steady.now_ms += 300_001
        await eventually(lambda: rig.turn.steady_ms == rig.steady.now_ms)
        assert not await client.can_write()


async def test_the_earlier_of_both_ends_counts(tmp_path: Path) -> None:
    async with token_rig(tmp_path, connections_max_reauth_ms=60_000) as (rig, issuer):
        client = await rig.client()
        await client.choose("OAUTHBEARER")
        assert (await client.token(bearer(issuer.token()))).session_lifetime_ms == 60_000


@pytest.mark.parametrize("acknowledgement", [b"\x01", b"", b"n,,\x01auth=Bearer x\x01\x01"])
async def test_a_token_that_is_not_taken_gets_a_reason_and_then_the_login_fails(
    tmp_path: Path, acknowledgement: bytes
) -> None:
    async with token_rig(tmp_path) as (rig, issuer):
        client = await rig.client()
        await client.choose("OAUTHBEARER")
        told = await client.token(bearer(issuer.token(ends_in_s=-600)))
        assert (told.error_code, bytes(told.auth_bytes)) == (0, b'{"status":"invalid_token"}')
        refused = await client.token(acknowledgement)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            '{"status":"invalid_token"}',
        )
        assert await client.is_closed()


async def test_a_token_is_not_for_another_user_than_the_client_names(tmp_path: Path) -> None:
    async with token_rig(tmp_path) as (rig, issuer):
        client = await rig.client()
        await client.choose("OAUTHBEARER")
        told = await client.token(bearer(issuer.token("alice"), name="bob"))
        assert bytes(told.auth_bytes) == b'{"status":"invalid_token"}'
        client = await rig.client()
        await client.choose("OAUTHBEARER")
        assert (await client.token(bearer(issuer.token("alice"), name="alice"))).auth_bytes == b""


async def test_a_fault_of_the_node_closes_the_connection(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path) as rig:

        def broken(name: str, mechanism: ScramMechanism) -> None:
            raise RuntimeError("a fault")

        rig.server.logins._find = broken
        client = await rig.client()
        await client.choose("SCRAM-SHA-512")
        await client.write(client.frame(36, 2, auth_bytes=b"n,,n=alice,r=x"))
        assert await client.is_closed()
        assert rig.server.logins.stats.succeeded == 0


async def test_on_a_listener_without_sasl_a_login_is_refused_as_in_kafka_and_the_connection_stays(
    tmp_path: Path,
) -> None:
    async with sasl_rig(tmp_path, SecurityProtocol.PLAINTEXT) as rig:
        client = await rig.client()
        assert (await client.choose("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.token(b"\0alice\0sesame")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.can_write()


async def test_clients_hear_that_logins_are_served(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path) as rig:
        client = await rig.client()
        served = {one.api_key: (one.min_version, one.max_version) for one in (await client.ask(18, 0)).api_keys}
        assert (served[17], served[36]) == ((0, 1), (0, 2)), "older librdkafka wants 0"


async def test_clients_that_leave_do_not_raise_the_number_of_passwords_checked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one that left freed its place while the thread worked on."""
    may_end, running = threading.Event(), []

    def slow(*_: Any) -> bool:
        running.append(1)
        may_end.wait(30)
        return False

    monkeypatch.setattr(logins, "is_password", slow)
    async with sasl_rig(tmp_path, sasl_enabled_mechanisms="PLAIN", sasl_plain_unencrypted_enable=True) as rig:
        try:
            for _ in range(2):
                client = await rig.client()
                await client.choose("PLAIN")
                before = len(running)
                await client.write(client.frame(36, 2, auth_bytes=b"\0alice\0wrong"))
                await eventually(lambda before=before: len(running) > before)
                client.close()
                await eventually(lambda: not rig.server._connections)
            assert rig.server.logins._passwords.locked()
        finally:
            may_end.set()
        await eventually(lambda: not rig.server.logins._passwords.locked())


async def test_a_connection_that_does_not_log_in_ends_whatever_it_asks(tmp_path: Path) -> None:
    async with sasl_rig(tmp_path, connection_read_timeout_ms=30_000) as rig:
        client = await rig.client()
        user = await rig.client()
        await user.log_in("alice")
        for _ in range(4):
            newer = bytearray(client.frame(18, 3, client_software_name="a", client_software_version="1"))
            newer[6:8] = (9).to_bytes(2, "big")
            await client.write(bytes(newer))
            await client.read_frame()
            rig.steady.now_ms += 9_000
        assert await client.is_closed()
        assert await user.can_write()
