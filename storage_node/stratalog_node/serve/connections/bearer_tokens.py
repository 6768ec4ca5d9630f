"""Tokens of OAUTHBEARER: signed by one of the keys at `sasl.oauthbearer.jwks.endpoint.url`, in time, for this cluster.

Which algorithms a signature may have follows from the key that the token names, never from the token, so a token
without a signature, or one signed with a public key as a secret, is refused. The keys are read again from time to time,
and when a token names an unknown one; if they cannot be read, the earlier ones stay in use. Lives on the event loop;
signatures are verified in a thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import aiohttp
import jwt

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge

log = logger(__name__)

ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Per type of key. Symmetric keys are not taken: whoever verifies with one could sign with it."""
_MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 1_000
_TIMEOUT_S: Final = 10.0
_LEAST_REFRESH_S: Final = 10.0
_LATEST_S: Final = 253_402_300_800
"""The year 10000: no token ends later."""


@dataclass(frozen=True, slots=True)
class ProvenToken:
    user: str
    ends_ms: int
    """Wall clock."""


@dataclass(slots=True)
class TokenStats:
    key_reads: int = counter("Reads of the keys that tokens are signed with.")
    key_failures: int = counter("Reads of these keys that failed; the earlier ones stay in use.")
    keys: int = gauge("Keys that tokens may be signed with.")


class BearerTokens:
    def __init__(
        self,
        settings: ProcessSettings,
        *,
        trust: Callable[[], ssl.SSLContext | None] = lambda: None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`trust`: for an https:// address; None: the authorities of the system."""
        self.stats = TokenStats()
        self._url = settings.sasl_oauthbearer_jwks_endpoint_url
        self._refresh_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1_000
        self._issuer = settings.sasl_oauthbearer_expected_issuer or None
        audiences = [one.strip() for one in settings.sasl_oauthbearer_expected_audience.split(",")]
        self._audiences = [one for one in audiences if one]
        self._skew_s = settings.sasl_oauthbearer_clock_skew_seconds
        self._user_claim = settings.sasl_oauthbearer_sub_claim_name
        self._trust = trust
        self.wall_s = wall_s
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at_s = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Reads the keys again until it is cancelled."""
        while True:
            await self._refresh()
            await asyncio.sleep(self._refresh_s if self._keys else _LEAST_REFRESH_S)

    async def check(self, token: str) -> ProvenToken:
        """Raises: InvalidRequest with a reason for the log, which quotes nothing of the token; Unavailable without
        keys."""
        try:
            named = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(named)
        except (jwt.PyJWTError, RecursionError, TypeError):  # deep JSON; a list as key id
            raise InvalidRequest("not a JSON Web Token") from None
        if key is None and self._is_refresh_due():
            await self._refresh()
            key = self._keys.get(named)
        if key is None:
            if not self._keys:
                raise Unavailable("the keys of tokens could not be read yet")
            raise InvalidRequest("it is signed with an unknown key")
        claims = await asyncio.to_thread(self._verified, token, key)
        user, ends_s = claims.get(self._user_claim), claims["exp"]
        if not isinstance(user, str) or not user.strip():
            raise InvalidRequest(f"it has no user in the claim {self._user_claim!r}")
        if isinstance(ends_s, bool) or not isinstance(ends_s, int | float) or not 0 < ends_s < _LATEST_S:
            raise InvalidRequest("its end is not a time")
        return ProvenToken(user.strip(), int(ends_s * 1_000))

    def _verified(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=list(_algorithms(key)),
                issuer=self._issuer,
                audience=self._audiences or None,
                leeway=self._skew_s,
                options={"require": ["exp", "iat"], "verify_aud": bool(self._audiences)},
            )
        except (jwt.PyJWTError, RecursionError, OverflowError, ValueError, TypeError) as wrong:  # hostile claims
            raise InvalidRequest(f"{type(wrong).__name__}") from None

    def _is_refresh_due(self) -> bool:
        return asyncio.get_running_loop().time() - self._read_at_s >= _LEAST_REFRESH_S or not self._read_at_s

    async def _refresh(self) -> None:
        """One read at a time, for all that wait for it."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="keys-of-tokens")
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        self._read_at_s = asyncio.get_running_loop().time()
        self.stats.key_reads += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                keys = _keys_of(await self._fetch())
        except (OSError, aiohttp.ClientError, TimeoutError, InvalidRequest, ssl.SSLError) as error:
            self.stats.key_failures += 1
            log.warning("the keys of tokens cannot be read", url=self._url, reason=str(error) or type(error).__name__)
            return
        self._keys = keys
        self.stats.keys = len(keys)

    async def _fetch(self) -> bytes:
        parts = urlsplit(self._url)
        if parts.scheme == "file":
            return await asyncio.to_thread(_read_file, Path(url2pathname(parts.path)))
        async with (
            aiohttp.ClientSession() as session,
            session.get(self._url, allow_redirects=False, ssl=self._trust() or True) as answer,
        ):
            if answer.status != 200:
                raise InvalidRequest(f"the address answers {answer.status}")
            data = b""
            async for piece in answer.content.iter_chunked(64 << 10):
                data += piece
                if len(data) > _MOST_BYTES:
                    raise InvalidRequest(f"more than {_MOST_BYTES} bytes")
            return data


def _read_file(path: Path) -> bytes:
    # A pipe would be waited for: only a file is read.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidRequest(f"{path} is not a file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidRequest(f"{path} is larger than {_MOST_BYTES} bytes")
    return data


def _keys_of(data: bytes) -> dict[str | None, jwt.PyJWK]:
    """By key id; keys of another kind or use are left out. Raises: InvalidRequest where none is left."""
    try:
        listed = json.loads(data)["keys"][:_MOST_KEYS]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidRequest("not a JSON Web Key Set") from None
    found: dict[str | None, jwt.PyJWK] = {}
    for entry in listed:
        try:
            if entry.get("use", "sig") == "sig" and entry.get("kty") in ALGORITHMS:
                found[entry.get("kid")] = jwt.PyJWK(entry)
        except (jwt.PyJWTError, AttributeError, ValueError, TypeError):
            continue
    if not found:
        raise InvalidRequest("no key that can verify signatures")
    return found


def _algorithms(key: jwt.PyJWK) -> tuple[str, ...]:
    """The one that the key set names for the key, or all of its type."""
    of_type = ALGORITHMS[str(key.key_type)]
    named = key._jwk_data.get("alg")
    return (named,) if named in of_type else of_type
