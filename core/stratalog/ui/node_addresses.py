"""Asks nodes at their admin ports, for the pages.

A node's address is what the node itself reported; so only plain addresses are asked, redirects are not followed,
answers are bounded and must name the node that was meant (`127.0.0.1` of another machine is another node's).
Lives on the event loop that first uses it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, Protocol, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from stratalog.admin_api.errors import error_from_body
from stratalog.model.errors import StratalogError, Unavailable, WrongServer
from stratalog.model.tokens import Token, bearer
from stratalog.tls.outgoing import ClientTls, why_no_tls

_URL: Final = re.compile(r"https?://[A-Za-z0-9.\-:\[\]_]+/?", re.ASCII)
_PATIENCE_S: Final = 4.0
_ANSWER_BYTES: Final = 16 << 20
_AT_ONCE: Final = 16


class NodeAnswer(Protocol):
    node_id: int


M = TypeVar("M", bound=BaseModel)


def is_plain_url(url: str) -> bool:
    """`http://HOST:PORT/` and nothing else: fit to be asked, and to be a link."""
    return _URL.fullmatch(url) is not None


class NodeAddresses:
    def __init__(self, token: Token | None, tls: ClientTls | None = None) -> None:
        self._token = token
        self._tls = tls
        self._http: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, node_id: int, url: str, path: str, model: type[M], patience_s: float = _PATIENCE_S) -> M:
        """Raises StratalogError: what the node answered, or why it gave no answer."""
        if not is_plain_url(url):
            raise Unavailable(f"node {node_id} has reported no admin port: set its metrics.listen")
        where = f"node {node_id} at {url.rstrip('/')}"
        try:
            async with self._places, asyncio.timeout(patience_s):
                body = await self._body(where, url.rstrip("/") + path)
        except TimeoutError:
            raise Unavailable(f"{where} does not answer within {patience_s:.0f} s") from None
        except aiohttp.ClientError as error:
            if (why := why_no_tls(error)) is not None:
                raise Unavailable(f"{where} cannot be asked: {why}") from None
            raise Unavailable(
                f"{where} does not answer ({error}): its metrics.listen must be an address that this process reaches"
            ) from None
        try:
            answer = model.model_validate_json(body)
        except ValidationError:
            raise WrongServer(f"{where}: what answers there is not the admin port of this release") from None
        if getattr(answer, "node_id", node_id) != node_id:
            raise WrongServer(
                f"{where}: another node answers there: set its metrics.listen to an address that this process reaches"
            )
        return answer

    async def _body(self, where: str, url: str) -> bytes:
        if self._http is None:
            self._http = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        headers = {"Host": "localhost"}  # not a browser: the guard against rebound names does not concern it
        if self._token is not None and (shown := self._token()):
            headers["Authorization"] = bearer(shown)
        tls = True if self._tls is None else self._tls()
        async with self._http.get(url, headers=headers, allow_redirects=False, ssl=tls) as answer:
            pieces, size = [], 0
            async for piece in answer.content.iter_chunked(1 << 16):
                size += len(piece)
                if size > _ANSWER_BYTES:
                    raise Unavailable(f"{where}: its answer is larger than {_ANSWER_BYTES >> 20} MiB")
                pieces.append(piece)
            body = b"".join(pieces)
            if answer.status != 200:
                raise _with_place(error_from_body(answer.status, body), where)
            return body


def _with_place(error: StratalogError, where: str) -> StratalogError:
    return type(error)(f"{where}: {error}")
