"""Logins by SASL: the requests before a connection's user is known, and those that log in again.

A password is compared in a thread (PLAIN; a SCRAM proof costs microseconds), at most `_PASSWORDS_AT_ONCE` at a time. An
answer to a failed login waits, longer with each failure of the same address; the loop does not. Nothing that a client
sent is logged, and an unknown user is not told from a wrong password. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.refused_requests import refused
from stratalog.machines.audit.lines import NOBODY_PROVEN, Asker
from stratalog.machines.sasl.failed_logins import FailedLogins
from stratalog.machines.sasl.login import Login, LoginStep, NotNow
from stratalog.machines.sasl.oauth_bearer import parse_bearer, reason_of_failure
from stratalog.machines.sasl.plain import parse_plain
from stratalog.machines.sasl.scram import ScramExchange, WrongCredentials, is_password, stand_in_credential
from stratalog.machines.sasl.scram_text import parse_client_first
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.listeners import SecurityProtocol
from stratalog.model.rights import USER, Principal
from stratalog.model.scram import LEAST_ITERATIONS, ScramCredential, ScramMechanism
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.control import LARGE_BYTES
from stratalog_node.serve.connections.serving import Serving

if TYPE_CHECKING:
    from stratalog_node.serve.connections.bearer_tokens import BearerTokens

log = logger(__name__)

HANDSHAKE, AUTHENTICATE, _VERSIONS, _PRODUCE = 17, 36, 18, 0
OF_LOGINS: Final = {HANDSHAKE: "SaslHandshake", AUTHENTICATE: "SaslAuthenticate"}
VERSIONS: Final = {HANDSHAKE: (1, 1), AUTHENTICATE: (0, 2)}
PLAIN: Final = "PLAIN"
BEARER: Final = "OAUTHBEARER"
_SCRAM: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}
_STRONGEST_FIRST: Final = (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256)
_PASSWORDS_AT_ONCE: Final = 2
_NONCE_BYTES: Final = 24

FindCredential = Callable[[str, ScramMechanism], ScramCredential | None]


@dataclass(slots=True)
class LoginStats:
    succeeded: int = counter("Logins by SASL that succeeded.")
    failed: int = counter("Logins by SASL that failed.")
    expired: int = counter("Connections closed because their login had ended (connections.max.reauth.ms).")


@dataclass(slots=True)
class _Open:
    """A connection with a login."""

    login: Login
    begun_ms: int = 0
    """When its client was first waited for, later by what was waited for this node since."""
    exchange: ScramExchange | None = None
    user: str = ""
    ends_ms: int = 0
    """When the proof of the user expires, by the monotonic clock; 0: never."""
    is_token_refused: bool = False
    """A bearer token was not taken: its client has been told, and acknowledges that."""
    is_busy: bool = False
    """A token is being checked, or its answer waits."""
    busy_since_ms: int = 0


NO_LOGIN: Final = Login(())
"""Of listeners without SASL: each request about it is refused, and the connection stays open."""
NO_LOGIN.step = LoginStep.DONE


class Logins:
    """Those of all connections of listeners with SASL."""

    def __init__(
        self, serving: Serving, settings: ProcessSettings, find: FindCredential, audit: AuditLog = NO_AUDIT
    ) -> None:
        self.stats = LoginStats()
        self._lines = BoundedLines(log, lambda: serving.turn.steady_ms, "stratalog_login_failed_total counts them")
        self._audit = audit
        self._serving = serving
        self._find = find
        self._mechanisms = settings.sasl_mechanisms
        self._is_plain_open = settings.sasl_plain_unencrypted_enable
        self._most_bytes = settings.sasl_server_max_receive_size
        self._again_ms = settings.connections_max_reauth_ms
        self._failed = FailedLogins(settings.connection_failed_authentication_delay_ms)
        self._secret = secrets.token_bytes(32)
        self._passwords = asyncio.Semaphore(_PASSWORDS_AT_ONCE)
        self._open: dict[Connection, _Open] = {}
        self.tokens: BearerTokens | None = None
        if BEARER in self._mechanisms:
            from stratalog_node.serve.connections.bearer_tokens import BearerTokens  # with libraries of its own

            self.tokens = BearerTokens(settings)

    def begin(self, connection: Connection, protocol: SecurityProtocol) -> None:
        """A connection was accepted: nothing but a login is taken from it."""
        is_safe = protocol.is_tls or self._is_plain_open
        offered = [one for one in self._mechanisms if is_safe or one in _SCRAM]
        login = Login(offered)
        self._open[connection] = _Open(login, self._serving.turn.steady_ms)
        connection.login = login
        connection.max_frame_bytes = min(self._most_bytes, self._serving.limits.max_frame_bytes)

    def end_overdue(self, now_ms: int) -> None:
        """Close connections whose clients have not logged in for as long as one frame may take."""
        patience_ms = self._serving.limits.read_timeout_ms
        late = [
            connection
            for connection, one in self._open.items()
            if not one.login.name and not _is_checked(one) and now_ms - one.begun_ms > patience_ms
        ]
        for connection in late:
            connection.close(
                f"it did not log in within {patience_ms} ms (connection.read.timeout.ms): "
                "set security.protocol and sasl.mechanism in the client",
                is_fault=True,
            )

    def secured(self, connection: Connection) -> None:
        """Its handshake of TLS is done, for which its client may have waited: only now can it log in."""
        opened = self._open.get(connection)
        if opened is not None:
            opened.begun_ms = self._serving.turn.monotonic_ms()

    def forget(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def takes(self, connection: Connection, header: RequestHeader, frame: memoryview, *, is_served: bool) -> bool:
        """Whether a request belongs to the login, and is answered here or refused. `is_served`: in this version.

        Raises: MalformedFrame.
        """
        opened = self._open.get(connection) or _Open(NO_LOGIN)
        login = opened.login
        if header.api_key in OF_LOGINS:
            self._handle(connection, opened, header, frame)
            return True
        if login.step is LoginStep.DONE:
            if not login.is_expired(self._serving.turn.steady_ms):
                return False
            self.stats.expired += 1
            connection.close("its login has ended (connections.max.reauth.ms), and the client did not log in again")
            return True
        try:
            if header.api_key != _VERSIONS:
                login.take_other(f"a request of key {header.api_key}")
            # The first time a client hears the versions that are served, and asks again.
            elif is_served or login.step is not LoginStep.FIRST:
                login.take_versions()
        except NotNow as early:
            reason = f"{early} on listener {connection.info.listener}: set security.protocol in the client"
            is_answered = early.is_answered and not opened.is_busy and len(frame) <= LARGE_BYTES
            if not is_answered or not self._refuse(connection, opened, header, frame, reason, is_served=is_served):
                connection.close(reason, is_fault=True)
            return True
        return False

    def _refuse(
        self,
        connection: Connection,
        opened: _Open,
        header: RequestHeader,
        frame: memoryview,
        why: str,
        *,
        is_served: bool,
    ) -> bool:
        """Answers a request of another API in its own format, which ends the login. Returns whether it has an answer.

        Raises: MalformedFrame.
        """
        key, version, request = header.api_key, header.api_version, None
        if is_served:
            request = messages.decode_body(key, version, messages.body_of(key, frame, header.body_position))
            if key == _PRODUCE and request.acks == 0:
                return False
        elif key == _VERSIONS:
            version = 0
        else:
            return False
        answer = _LoginAnswer(connection, header)
        entity = refused(key, version, request, ErrorCode.ILLEGAL_SASL_STATE, why)
        self._end(opened, answer, "request", opened.login.wanted, lambda: answer.ready_with(entity, version))
        return True

    def _end(self, opened: _Open, answer: _LoginAnswer, at: str, mechanism: str, ready: Callable[[], None]) -> None:
        """The login failed, at a request that `ready` answers after a while."""
        connection = answer.connection
        delay_ms = self._note_failure(connection, at, mechanism)
        opened.is_busy = True

        async def late() -> None:
            await asyncio.sleep(delay_ms / 1_000)
            ready()
            answer.close_once_sent(f"the login failed, at the {at}")

        connection.expect_answer(answer)
        connection.run_control(late)

    # The two requests -----------------------------------------------------------------------------------------------
    def _handle(self, connection: Connection, opened: _Open, header: RequestHeader, frame: memoryview) -> None:
        oldest, newest = VERSIONS[header.api_key]
        if not oldest <= header.api_version <= newest:
            connection.close(f"key {header.api_key} v{header.api_version} is not served", is_fault=True)
            return
        if opened.is_busy:
            opened.login.fail()
            connection.close("a request came before the last token was answered", is_fault=True)
            return
        body = messages.body_of(header.api_key, frame, header.body_position)
        request = messages.decode_body(header.api_key, header.api_version, body)
        answer = _LoginAnswer(connection, header)
        if header.api_key == HANDSHAKE:
            self._handshake(opened, request.mechanism, answer)
        else:
            self._take_token(opened, request.auth_bytes, answer)

    def _handshake(self, opened: _Open, mechanism: str, answer: _LoginAnswer) -> None:
        login = opened.login
        code, offered = ErrorCode.NONE, login.mechanisms
        try:
            login.take_handshake(mechanism, self._serving.turn.steady_ms)
        except NotNow:
            code, offered = ErrorCode.ILLEGAL_SASL_STATE, ()
        except InvalidRequest:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        opened.exchange, opened.is_token_refused = None, False
        values = {"error_code": code, "mechanisms": offered}
        if login.step is LoginStep.OVER:
            self._end(opened, answer, "mechanism", mechanism[:80], lambda: answer.ready(values))
        else:
            answer.connection.expect_answer(answer)
            answer.ready(values)

    def _take_token(self, opened: _Open, token: bytes, answer: _LoginAnswer) -> None:
        connection = answer.connection
        try:
            opened.login.take_token()
        except NotNow as early:
            if early.is_answered:
                connection.expect_answer(answer)
                answer.ready(_failure(ErrorCode.ILLEGAL_SASL_STATE, str(early)))
            else:
                connection.close(str(early), is_fault=True)
            return
        opened.is_busy, opened.busy_since_ms = True, self._serving.turn.monotonic_ms()
        connection.expect_answer(answer)
        connection.run_control(lambda: self._authenticate(connection, opened, token, answer))

    async def _authenticate(self, connection: Connection, opened: _Open, token: bytes, answer: _LoginAnswer) -> None:
        login = opened.login
        try:
            login.check_mechanism()
            challenge = await self._evaluate(opened, bytes(token))
            lifetime_ms = 0
            if opened.user:
                now_ms = self._serving.turn.monotonic_ms()
                ends = [end for end in (opened.ends_ms, now_ms + self._again_ms if self._again_ms else 0) if end]
                login.prove(opened.user, min(ends, default=0))
                lifetime_ms = max(1, login.ends_ms - now_ms) if login.ends_ms else 0
        except InvalidRequest as why:
            login.fail()
            await self._fail(connection, login, why, answer)
            return
        except Exception as fault:  # a fault of this node must not leave the client waiting
            login.fail()
            connection.turn_failed(fault)
            return
        if connection.is_closed:
            return
        opened.is_busy = False
        opened.begun_ms += self._serving.turn.monotonic_ms() - opened.busy_since_ms
        if login.step is LoginStep.DONE:
            self._succeed(connection, opened)
        answer.ready(
            {
                "error_code": ErrorCode.NONE,
                "error_message": None,
                "auth_bytes": challenge,
                "session_lifetime": lifetime_ms,
            }
        )

    async def _evaluate(self, opened: _Open, token: bytes) -> bytes:
        """What the client's token is answered with; `opened.user` is the user once it is proven.

        Raises: InvalidRequest.
        """
        opened.user, opened.ends_ms = "", 0
        mechanism = _SCRAM.get(opened.login.wanted)
        if mechanism is None and opened.login.wanted == PLAIN:
            opened.user = await self._check_password(token)
            return b""
        if mechanism is None:
            return await self._check_bearer(opened, token)
        if opened.exchange is None:
            first = parse_client_first(token)
            stand_in = stand_in_credential(mechanism, first.name, self._secret, LEAST_ITERATIONS)
            nonce = secrets.token_urlsafe(_NONCE_BYTES).encode()
            found = self._find(first.name, mechanism)
            opened.exchange = ScramExchange(mechanism, first, found, stand_in, nonce)
            return opened.exchange.challenge
        exchange, opened.exchange = opened.exchange, None
        proof = exchange.finish(token)
        opened.user = exchange.name
        return proof

    async def _check_password(self, token: bytes) -> str:
        """By PLAIN: the user's name. Raises: InvalidRequest, WrongCredentials."""
        shown = parse_plain(token)
        mechanism = _STRONGEST_FIRST[0]
        credential = None
        for mechanism in _STRONGEST_FIRST:
            credential = self._find(shown.name, mechanism)
            if credential is not None:
                break
        used = credential or stand_in_credential(mechanism, shown.name, self._secret, LEAST_ITERATIONS)
        await self._passwords.acquire()
        checking = self._serving.loop.run_in_executor(None, is_password, mechanism, used, shown.password)
        checking.add_done_callback(lambda _: self._passwords.release())
        is_right = await asyncio.shield(checking)  # a client that leaves does not end the thread's work
        if not is_right or credential is None:
            raise WrongCredentials("Authentication failed: Invalid username or password")
        return shown.name

    async def _check_bearer(self, opened: _Open, token: bytes) -> bytes:
        """By OAUTHBEARER: sets the user. Returns the reason where the token is not taken. Raises: InvalidRequest."""
        if opened.is_token_refused:
            raise WrongCredentials(reason_of_failure().decode())
        shown = parse_bearer(token)
        assert self.tokens is not None, "the settings have the address of the keys"
        try:
            proven = await self.tokens.check(shown.token)
            if shown.authorization_id not in ("", proven.user):
                raise InvalidRequest("the client names another user than its token does")
        except (InvalidRequest, Unavailable) as why:
            self._lines.info("a bearer token is not taken", reason=str(why))
            opened.is_token_refused = True
            return reason_of_failure()
        turn = self._serving.turn
        opened.user = proven.user
        opened.ends_ms = turn.monotonic_ms() + max(1, proven.ends_ms - int(self.tokens.wall_s() * 1_000))
        return b""

    # Ends -----------------------------------------------------------------------------------------------------------
    def _succeed(self, connection: Connection, opened: _Open) -> None:
        self.stats.succeeded += 1
        connection.identify(Principal(USER, opened.login.name))
        connection.max_frame_bytes = self._serving.limits.max_frame_bytes

    async def _fail(self, connection: Connection, login: Login, why: InvalidRequest, answer: _LoginAnswer) -> None:
        """Answers after a while, in Kafka's words, then closes."""
        delay_ms = self._note_failure(connection, "token", login.wanted)
        words = str(why)
        if login.wanted in _SCRAM:
            words = (
                f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{login.wanted}"
            )
        await asyncio.sleep(delay_ms / 1_000)
        answer.ready(_failure(ErrorCode.SASL_AUTHENTICATION_FAILED, words))
        answer.close_once_sent("the login failed")

    def _note_failure(self, connection: Connection, at: str, mechanism: str) -> int:
        """Returns how long the answer waits."""
        self.stats.failed += 1
        self._lines.warning("login failed", peer=connection.info.peer, at=at, mechanism=mechanism)
        address = connection.info.peer.rpartition(":")[0]
        error = ErrorCode.SASL_AUTHENTICATION_FAILED.name
        self._audit.denied(Asker(NOBODY_PROVEN, address), "Login", "LISTENER", connection.info.listener, error)
        return self._failed.failed(address, self._serving.turn.steady_ms)


def _is_checked(opened: _Open) -> bool:
    """Its client has sent what it is to send, and waits for this node."""
    return opened.is_busy and opened.login.step is not LoginStep.OVER


def _failure(code: ErrorCode, words: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": words, "auth_bytes": b"", "session_lifetime": 0}


class _LoginAnswer(Answer):
    """The answer to a request of a login, or to one that came during it."""

    __slots__ = ("_header", "connection")

    def __init__(self, connection: Connection, header: RequestHeader) -> None:
        super().__init__()
        self.connection = connection
        self._header = header

    def ready(self, values: dict[str, Any]) -> None:
        key, version = self._header.api_key, self._header.api_version
        self.ready_with(messages.build(messages.response_type(key, version), **values), version)

    def ready_with(self, entity: Any, version: int) -> None:
        self.buffers = messages.response_buffers(self._header.api_key, version, self._header.correlation_id, entity)
        self.connection.answer_ready()

    def close_once_sent(self, reason: str) -> None:
        """Takes the bytes to the socket first."""
        connection = self.connection
        self.release = lambda: connection.close_soon(reason)
