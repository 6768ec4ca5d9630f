"""The login of one connection by SASL: which request may come next, and what it leads to. Pure.

ApiVersions may come once, then SaslHandshake chooses a mechanism, then tokens go to and fro until the client has proven
who it is. A client may do so again on an open connection, with the same mechanism and as the same user (KIP-368).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from stratalog.model.errors import InvalidRequest

LEAST_AGAIN_MS: Final = 1_000
"""Between two logins of one connection."""


class LoginStep(Enum):
    FIRST = "first"
    """Nothing has come yet."""
    HANDSHAKE = "handshake"
    """The client knows the versions, and has to choose a mechanism."""
    TOKENS = "tokens"
    """The client proves who it is."""
    DONE = "done"
    OVER = "over"
    """It failed: the connection ends."""


LOGIN_TRANSITIONS: Final[dict[LoginStep, frozenset[LoginStep]]] = {
    LoginStep.FIRST: frozenset({LoginStep.HANDSHAKE, LoginStep.TOKENS, LoginStep.OVER}),
    LoginStep.HANDSHAKE: frozenset({LoginStep.TOKENS, LoginStep.OVER}),
    LoginStep.TOKENS: frozenset({LoginStep.DONE, LoginStep.OVER}),
    LoginStep.DONE: frozenset({LoginStep.TOKENS, LoginStep.OVER}),
    LoginStep.OVER: frozenset(),
}


class NotNow(InvalidRequest):
    """A request that does not belong to this step of the login. `is_answered`: with ILLEGAL_SASL_STATE, as in Kafka;
    else the connection is closed without an answer."""

    def __init__(self, message: str, *, is_answered: bool) -> None:
        super().__init__(message)
        self.is_answered = is_answered


class UnsupportedMechanism(InvalidRequest):
    """The client asked for a mechanism that this listener does not offer."""


class Login:
    """`step` says what may come; `name` is the user's once it was proven."""

    __slots__ = ("_began_ms", "ends_ms", "mechanism", "mechanisms", "name", "step", "wanted")

    def __init__(self, mechanisms: Sequence[str]) -> None:
        self.mechanisms = tuple(mechanisms)
        """What this listener offers."""
        self.step = LoginStep.FIRST
        self.mechanism = ""
        """That of the first login, which later ones keep."""
        self.wanted = ""
        """That of the login under way."""
        self.name = ""
        self.ends_ms = 0
        """Until when requests are taken, by the monotonic clock; 0: as long as the connection lasts."""
        self._began_ms = 0

    def take_versions(self) -> None:
        """ApiVersions came before the login is done. Raises: NotNow."""
        if self.step is not LoginStep.FIRST:
            self._refuse("ApiVersions")
        self.step = LoginStep.HANDSHAKE

    def take_other(self, request: str) -> None:
        """A request came that belongs to no login. Raises: NotNow, unless it is done."""
        if self.step is not LoginStep.DONE:
            self._refuse(request)

    def take_handshake(self, mechanism: str, now_ms: int) -> None:
        """Raises: NotNow; UnsupportedMechanism, after which the connection ends."""
        is_again = self.step is LoginStep.DONE
        if is_again and (not self.ends_ms or now_ms - self._began_ms < LEAST_AGAIN_MS):
            raise NotNow("this connection has logged in, and has no reason to do so again now", is_answered=True)
        if not is_again and self.step not in (LoginStep.FIRST, LoginStep.HANDSHAKE):
            self._refuse("SaslHandshake")
        if mechanism not in self.mechanisms:
            self.step = LoginStep.OVER
            raise UnsupportedMechanism(f"{mechanism[:80]!r} is not one of {', '.join(self.mechanisms)}")
        self.wanted = mechanism
        self._began_ms = now_ms
        self.step = LoginStep.TOKENS

    def take_token(self) -> None:
        """SaslAuthenticate came. Raises: NotNow."""
        if self.step is not LoginStep.TOKENS:
            self._refuse("SaslAuthenticate")

    def check_mechanism(self) -> None:
        """Raises: InvalidRequest for another mechanism than that of the first login."""
        if self.mechanism and self.wanted != self.mechanism:
            self.step = LoginStep.OVER
            raise InvalidRequest(f"this connection logged in by {self.mechanism}, and not by {self.wanted}")

    def prove(self, name: str, ends_ms: int) -> None:
        """The client has proven to be the user `name`. Raises: InvalidRequest if it was another one before."""
        if self.name and name != self.name:
            self.step = LoginStep.OVER
            raise InvalidRequest("this connection belongs to another user: open a new one")
        self.mechanism, self.name, self.ends_ms = self.wanted, name, ends_ms
        self.step = LoginStep.DONE

    def fail(self) -> None:
        self.step = LoginStep.OVER

    def is_expired(self, now_ms: int) -> bool:
        return 0 < self.ends_ms < now_ms

    def _refuse(self, request: str) -> None:
        was = self.step
        if was is not LoginStep.DONE:
            self.step = LoginStep.OVER
        is_answered = was in (LoginStep.TOKENS, LoginStep.DONE)
        raise NotNow(f"{request} does not belong to this step of a login ({was.value})", is_answered=is_answered)
