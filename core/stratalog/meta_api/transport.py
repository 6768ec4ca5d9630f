"""Requests and line streams to whichever instance of the meta service leads, over HTTP.

Every failure is raised as what it means for the caller. `Unavailable`: certainly not done (no connection, or the
service said so). `OutcomeUnknown`: sent, and no answer that can be trusted. Anything else is what the service raised.

Lives on one event loop. Requests that must not be doubled go over fresh connections: on a kept connection that the
service has just closed, it is unknown whether the request was read. Every change is a POST, because aiohttp repeats any
other request whose connection broke.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Final, TypeVar

import aiohttp

from stratalog.meta_api.attempts import AttemptLog, Repeat, RetryPolicy
from stratalog.meta_api.endpoints import MAX_HOPS, Endpoints
from stratalog.meta_api.wire import foreign, read_problem
from stratalog.model.errors import NotLeader, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.tokens import Token, bearer
from stratalog.tls.outgoing import ClientTls, why_no_tls

R = TypeVar("R")
CLUSTER_HEADER: Final = "Stratalog-Cluster"
"""The cluster whose metadata a request is for, once the client knows it: instances of another cluster answer
`Fenced`."""
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
MAX_REQUESTS: Final = 32
"""So many at once; further ones wait their turn, before their time begins to run."""


class RequestsInFlight:
    """The requests to each instance, so that all of them end once another instance is known to lead.

    An instance that was replaced while it hung would otherwise hold its callers until their patience ends.
    """

    def __init__(self) -> None:
        self._by_url: dict[str, set[Callable[[], None]]] = {}

    @contextmanager
    def at(self, url: str, give_up: Callable[[], None]) -> Iterator[None]:
        """A request to `url` is in flight inside this context. `give_up` ends it, and may be called more than once."""
        requests = self._by_url.setdefault(url, set())
        requests.add(give_up)
        try:
            yield
        finally:
            requests.discard(give_up)
            if not requests and self._by_url.get(url) is requests:
                del self._by_url[url]

    def give_up_all_but(self, url: str) -> None:
        for other, requests in list(self._by_url.items()):
            if other != url:
                for give_up in list(requests):
                    give_up()


class Transport:
    """One service, of one instance or several."""

    def __init__(
        self, endpoints: Endpoints, policy: RetryPolicy, token: Token | None = None, tls: ClientTls | None = None
    ) -> None:
        """`token` is asked for what to show with each request; empty: nothing. `tls`: for instances with https://; by
        default the authorities of the system are trusted, and no certificate is shown."""
        self._tls = tls
        self._endpoints = endpoints
        self._in_flight = RequestsInFlight()
        self._policy = policy
        self._token = token
        self._random = random.Random()
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._is_closed = False
        self.cluster_id: str | None = None
        """Goes with each request from then on."""

    @property
    def answered_url(self) -> str | None:
        return self._endpoints.answered_last

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
        """Made on first use, because aiohttp needs the loop that they run on."""
        if self._is_closed:
            where = self._endpoints.present
            raise Unavailable(f"this client of the meta service at {where} has been closed: make another one")
        if self._kept is None or self._fresh is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._policy.connect_s)
            # No limit here: waiting for a free connection would count as waiting for an answer. `_slots` limits. And no
            # memory of addresses: a pod that comes back has another one under its name.
            kept = aiohttp.TCPConnector(limit=0, use_dns_cache=False)
            fresh = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
            self._kept = aiohttp.ClientSession(connector=kept, timeout=timeout, trust_env=False)
            self._fresh = aiohttp.ClientSession(connector=fresh, timeout=timeout, trust_env=False)
        return self._kept, self._fresh

    def _ssl(self) -> ssl.SSLContext | bool:
        """A connection is kept for the context that it was made with: with a renewed certificate others are made."""
        return True if self._tls is None else self._tls()

    def _headers(self) -> dict[str, str]:
        headers = {} if self.cluster_id is None else {CLUSTER_HEADER: self.cluster_id}
        shown = "" if self._token is None else self._token()
        return headers | {"Authorization": bearer(shown)} if shown else headers

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(self._policy.pause_s(attempt, self._random.random))

    async def request(
        self, path: str, body: bytes | None, repeat: Repeat, *, policy: RetryPolicy | None = None, waits: bool = True
    ) -> bytes:
        """The body of a successful answer, after as many attempts as are allowed. One with a body is a POST. `waits`:
        its turn, behind others."""
        policy = policy or self._policy

        async def ask() -> bytes:
            async with self._slots if waits else nullcontext():
                return await self._follow(path, body, repeat, policy.attempt_s)

        return await self.persist(ask, repeat, policy)

    async def ask_once(self, path: str, body: bytes, repeat: Repeat) -> bytes:
        """The body of a successful answer to a POST, after one attempt."""
        async with self._slots:
            return await self._follow(path, body, repeat, self._policy.attempt_s)

    async def persist(self, ask: Callable[[], Awaitable[R]], repeat: Repeat, policy: RetryPolicy | None = None) -> R:
        """As many attempts as are allowed, with pauses between."""
        log = AttemptLog(repeat, (policy or self._policy).attempts)
        attempt = 0
        while True:
            try:
                return await ask()
            except StratalogError as error:
                final = log.failed(error)
                if final is error:
                    raise  # not from itself
                if final is not None:
                    raise final from error
            await self.pause(attempt)
            attempt += 1

    async def _follow(self, path: str, body: bytes | None, repeat: Repeat, attempt_s: float) -> bytes:
        """One attempt at the leading instance. An instance that does not lead names the leader, and has done
        nothing."""
        hops = 0
        while True:
            url = self._endpoints.present
            try:
                answer = await self._attempt(url, path, body, repeat, attempt_s)
            except NotLeader as error:
                hops += 1
                if not self._goes_on(error, url) or hops > MAX_HOPS:
                    raise
            except (Unavailable, OutcomeUnknown):
                self._endpoints.failed(url)
                raise
            else:
                self._endpoints.answered(url)
                self._in_flight.give_up_all_but(url)
                return answer

    def _goes_on(self, error: NotLeader, url: str) -> bool:
        """Whether the instance that does not lead has named another one."""
        if error.leader is None or error.leader.rstrip("/") == url:
            self._endpoints.failed(url)
            return False
        self._endpoints.leads(error.leader)
        self._in_flight.give_up_all_but(self._endpoints.present)
        return True

    async def _attempt(self, url: str, path: str, body: bytes | None, repeat: Repeat, attempt_s: float) -> bytes:
        assert body is not None or repeat is Repeat.READ, "changes are sent as POST"
        method = "GET" if body is None else "POST"
        kept, fresh = self._sessions()
        session = fresh if repeat is Repeat.NEVER else kept
        where = f"{method} {url}{path}"
        # The service takes a body only as JSON: no foreign web page can send that.
        headers = self._headers() if body is None else self._headers() | {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(attempt_s) as limit:
                with self._in_flight.at(url, partial(_end, limit)):
                    async with session.request(
                        method, url + path, data=body, headers=headers, allow_redirects=False, ssl=self._ssl()
                    ) as response:
                        answer = await response.read()
                if response.status == 200:
                    return answer
                raise read_problem(response.status, answer, where)
        except aiohttp.ConnectionTimeoutError as error:  # a TimeoutError, too; but nothing was sent
            raise _translated(error, where) from error
        except TimeoutError as error:
            why = f"within {attempt_s} s" if self._endpoints.present == url else "before another instance led"
            raise OutcomeUnknown(f"{where}: no answer {why}: read before acting") from error
        except aiohttp.ClientError as error:
            raise _translated(error, where) from error

    @asynccontextmanager
    async def lines(self, path: str, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """A long answer, line by line (empty ones too). Within it every failure is `Unavailable`: reading changes
        nothing. A line that does not come within `silence_s` is a failure."""
        url = self._endpoints.present
        try:
            async with self._lines(url, path, silence_s) as lines:
                yield lines
        except NotLeader as error:
            self._goes_on(error, url)
            raise
        except Unavailable:
            self._endpoints.failed(url)
            raise

    @asynccontextmanager
    async def _lines(self, url: str, path: str, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        kept, _ = self._sessions()
        where = f"GET {url}{path}"
        try:
            async with asyncio.timeout(self._policy.attempt_s):
                response = await kept.get(url + path, headers=self._headers(), allow_redirects=False, ssl=self._ssl())
            try:
                if response.status != 200:
                    problem = read_problem(response.status, await response.read(), where)
                    raise Unavailable(str(problem)) if isinstance(problem, OutcomeUnknown) else problem
                with self._in_flight.at(url, response.close):
                    yield _lines(response.content, silence_s, where)
            finally:
                response.close()  # what is left of a stream is not read
        except TimeoutError as error:
            raise Unavailable(f"{where}: nothing came for too long: ask again") from error
        except aiohttp.ClientError as error:
            raise Unavailable(str(_translated(error, where))) from error


def _end(limit: asyncio.Timeout) -> None:
    """Let it run out now."""
    if not limit.expired():
        limit.reschedule(0.0)


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


def _reason(error: aiohttp.ClientError | aiohttp.InvalidURL) -> str:
    number = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    return os.strerror(number) if number is not None and number > 0 else str(error)


def _translated(error: aiohttp.ClientError, where: str) -> StratalogError:
    at = where.partition(" ")[2].partition("/v1/")[0]
    if (why := why_no_tls(error)) is not None:
        # A refused handshake, which may be heard of after the request was sent: it was not read.
        return Unavailable(f"the meta service at {at} cannot be asked: {why}")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL):
        return Unavailable(
            f"no meta service answers at {at} ({_reason(error)}); start one with `stratalog meta start`, or name its "
            "--listen address"
        )
    hint = " (or it speaks TLS: then write https://)" if at.startswith("http://") else ""
    if isinstance(error, aiohttp.ClientResponseError):
        return OutcomeUnknown(foreign(where, f"it speaks no HTTP{hint}"))
    return OutcomeUnknown(f"{where}: the answer was lost ({error!r}){hint}: read before acting again")
