"""Requests and line streams to one meta service over HTTP, with every failure told as what it means for the caller.

`Unavailable`: surely not done (no connection, the service said so). `OutcomeUnknown`: sent, and no answer that can be
trusted. Anything else is what the service raised.

Lives on one event loop. Requests that must not be doubled go over fresh connections: on a kept one that the service has
just closed nobody could know whether the request was read. All that asks for a change is a POST, for aiohttp sends any
other request whose connection broke once more by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from stratalog.meta_api.attempts import AttemptLog, Repeat, RetryPolicy
from stratalog.meta_api.wire import read_problem
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
MAX_REQUESTS: Final = 32
"""So many at once; further ones wait their turn, before their time begins to run."""


class Transport:
    """One service at `http://HOST:PORT`."""

    def __init__(self, url: str, policy: RetryPolicy) -> None:
        self._url = url.rstrip("/")
        self._policy = policy
        self._random = random.Random()
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._is_closed = False

    @property
    def policy(self) -> RetryPolicy:
        return self._policy

    async def close(self) -> None:
        self._is_closed = True
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()
        self._kept = self._fresh = None

    def _sessions(self) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
        """Made on first use: aiohttp wants the loop they live on."""
        if self._is_closed:
            raise Unavailable(f"this client of the meta service at {self._url} has been closed: make another one")
        if self._kept is None or self._fresh is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._policy.connect_s)
            # No limit here: waiting for a free connection would count as waiting for an answer. `_slots` limits.
            kept, fresh = aiohttp.TCPConnector(limit=0), aiohttp.TCPConnector(limit=0, force_close=True)
            self._kept = aiohttp.ClientSession(connector=kept, timeout=timeout, trust_env=False)
            self._fresh = aiohttp.ClientSession(connector=fresh, timeout=timeout, trust_env=False)
        return self._kept, self._fresh

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(self._policy.pause_s(attempt, self._random.random))

    async def request(self, path: str, body: bytes | None, repeat: Repeat) -> bytes:
        """The body of a successful answer, after as many attempts as are allowed. One with a body is a POST."""
        log = AttemptLog(repeat, self._policy.attempts)
        attempt = 0
        while True:
            try:
                async with self._slots:
                    return await self._attempt(path, body, repeat)
            except StratalogError as error:
                final = log.failed(error)
                if final is not None:
                    raise final from error
            await self.pause(attempt)
            attempt += 1

    async def _attempt(self, path: str, body: bytes | None, repeat: Repeat) -> bytes:
        assert body is not None or repeat is Repeat.READ, "changes are sent as POST"
        method = "GET" if body is None else "POST"
        kept, fresh = self._sessions()
        session = fresh if repeat is Repeat.NEVER else kept
        where = f"{method} {self._url}{path}"
        # The service takes a body only as JSON: no foreign web page can send that.
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(self._policy.attempt_s):
                async with session.request(method, self._url + path, data=body, headers=headers) as response:
                    answer = await response.read()
                    if response.status == 200:
                        return answer
                    raise read_problem(response.status, answer, where)
        except TimeoutError as error:
            raise OutcomeUnknown(f"{where}: no answer within {self._policy.attempt_s} s: read before acting") from error
        except aiohttp.ClientError as error:
            raise _translated(error, where) from error

    @asynccontextmanager
    async def lines(self, path: str, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """A long answer, line by line (empty ones too). Within it every failure is `Unavailable`: reading changes
        nothing. A line that does not come within `silence_s` is a failure."""
        kept, _ = self._sessions()
        where = f"GET {self._url}{path}"
        try:
            async with asyncio.timeout(self._policy.attempt_s):
                response = await kept.get(self._url + path)
            try:
                if response.status != 200:
                    problem = read_problem(response.status, await response.read(), where)
                    raise Unavailable(str(problem)) if isinstance(problem, OutcomeUnknown) else problem
                yield _lines(response.content, silence_s, where)
            finally:
                response.close()  # what is left of a stream is not read
        except TimeoutError as error:
            raise Unavailable(f"{where}: nothing came for too long: ask again") from error
        except aiohttp.ClientError as error:
            raise Unavailable(str(_translated(error, where))) from error


async def _lines(content: aiohttp.StreamReader, silence_s: float, where: str) -> AsyncIterator[bytes]:
    pieces: list[bytes] = []
    size = 0
    while True:
        async with asyncio.timeout(silence_s):
            piece = await content.readany()
        if not piece:
            if pieces:
                raise Unavailable(f"{where} was cut in the middle of a line: ask again")
            return
        *ended, rest = piece.split(b"\n")
        for line in ended:
            yield b"".join((*pieces, line))
            pieces.clear()
            size = 0
        if rest:
            pieces.append(rest)
            size += len(rest)
            if size > MAX_LINE_BYTES:
                raise Unavailable(f"{where}: a line is longer than {MAX_LINE_BYTES} bytes: is this a meta service?")


def _translated(error: aiohttp.ClientError, where: str) -> StratalogError:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL):
        return Unavailable(f"{where}: no connection ({error}): is the meta service there?")
    return OutcomeUnknown(f"{where}: the answer was lost ({error!r}): read before acting again")
