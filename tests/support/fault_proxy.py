"""An HTTP proxy in front of an S3 server that does what networks and stores do on bad days.

    async with FaultProxy(server.port) as proxy:
        rule = proxy.add(Rule(LostAnswer(), methods={"PUT"}, times=1))
        store = open_store(server.through(proxy.port).url())
        ...
        assert rule.hits == 1

Rules are tried in order for each request; the first one that matches and has hits left acts, after all latencies that
match. `refuse()` closes the port (connection refused), `accept()` opens it again. Everything is counted.
It passes requests on byte for byte, the Host header too, so signatures stay valid. Runs on the loop that starts it;
`proxy_in_thread` gives it a loop of its own, for tests of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

from support.http_messages import Head, read_body, read_head

_TRICKLE_BYTES = 16 << 10
"""Passed on at once over a `SlowLink`."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Wait before the request is passed on; other rules still act."""

    seconds: float
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerError:
    """Answer instead of the server: S3's SlowDown unless told otherwise. The request's body is read first."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True, slots=True)
class CutBody:
    """Pass on this many bytes of the answer's body, then close the connection."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class ShortBody:
    """Pass on a body that lacks its last bytes, under a Content-Length that hides it (F44)."""

    missing_bytes: int = 1


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Take the request and never answer; it does not reach the server."""


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """Pass the request on, wait for the server's answer, close the connection without it."""


@dataclass(frozen=True, slots=True)
class HungAnswer:
    """Pass the request on, and never answer: the work is done, and the client never learns of it."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the connection before the request is passed on."""


Fault: TypeAlias = Latency | ServerError | CutBody | ShortBody | BlackHole | LostAnswer | HungAnswer | Reset


@dataclass(slots=True)
class Rule:
    """Which requests meet a fault. All conditions must hold."""

    fault: Fault
    methods: frozenset[str] | set[str] | None = None
    target_contains: str | None = None
    """A part of the request's target: the key, or `?delete`."""
    times: int | None = None
    """So many hits, then never again."""
    skip: int = 0
    """So many matching requests pass first."""
    share: float = 1.0
    """This share of the matching requests, by the proxy's seed."""
    when: Callable[[Head], bool] | None = None
    hits: int = 0

    def matches(self, head: Head, draw: Callable[[], float]) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if self.methods is not None and head.method not in self.methods:
            return False
        if self.target_contains is not None and self.target_contains not in head.target:
            return False
        if self.when is not None and not self.when(head):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        return self.share >= 1.0 or draw() < self.share


@dataclass(slots=True)
class Seen:
    """What came: requests by method, faults by name, bytes of answers' bodies passed on."""

    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    targets: list[str] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    body_bytes: int = 0


class FaultProxy:
    """Listens on a loopback port of its own; see the module's head."""

    def __init__(self, upstream_port: int, *, upstream_host: str = "127.0.0.1", seed: int = 0) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.rules: list[Rule] = []
        self.seen = Seen()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """All is well from now on (black holes keep what they have)."""
        self.rules.clear()

    async def start(self) -> None:
        await self.accept()

    async def accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Close the port and every connection: the next attempt is refused."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def close(self) -> None:
        await self.refuse()

    async def __aenter__(self) -> FaultProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    # One connection ---------------------------------------------------------------------------------------------
    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain callback: asyncio's own task for a coroutine would complain when the proxy cancels it.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.connections += 1
        self.seen.open_connections += 1
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (head := await read_head(reader)) is not None:
                if upstream is None:
                    upstream = await asyncio.open_connection(*self._upstream)
                if not await self._exchange(head, reader, writer, *upstream):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.seen.open_connections -= 1
            for stream in (writer, upstream[1] if upstream else None):
                if stream is not None:
                    stream.close()

    async def _exchange(
        self,
        head: Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer. Returns: whether the connection stays open."""
        self.seen.requests[head.method] += 1
        self.seen.targets.append(f"{head.method} {head.target}")
        fault = await self._fault_for(head)
        if isinstance(fault, Reset):
            return False
        if head.expects_continue:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(reader, head, is_answer_to=None)
        if isinstance(fault, BlackHole):
            await asyncio.Event().wait()
        if isinstance(fault, ServerError):
            writer.write(_error_answer(fault, head))
            await writer.drain()
            return True
        up_writer.write(head.without_expect() + body)
        await up_writer.drain()
        answer = await read_head(up_reader)
        if answer is None:
            return False
        answer_body = await read_body(up_reader, answer, is_answer_to=head.method)
        if isinstance(fault, HungAnswer):
            await asyncio.Event().wait()
        if isinstance(fault, LostAnswer):
            return False
        if isinstance(fault, CutBody):
            writer.write(answer.raw + answer_body[: fault.after_bytes])
            await writer.drain()
            return False
        if isinstance(fault, ShortBody):
            answer_body = answer_body[: -fault.missing_bytes]
            answer = answer.with_content_length(len(answer_body))
        writer.write(answer.raw)
        writer.write(answer_body)
        self.seen.body_bytes += len(answer_body)
        await writer.drain()
        return not answer.closes

    async def _fault_for(self, head: Head) -> Fault | None:
        for rule in list(self.rules):
            if rule.matches(head, self._random.random):
                rule.hits += 1
                self.seen.faults[type(rule.fault).__name__] += 1
                if not isinstance(rule.fault, Latency):
                    return rule.fault
                await asyncio.sleep(rule.fault.seconds + self._random.random() * rule.fault.jitter_s)
        return None


def _error_answer(fault: ServerError, head: Head) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>by the proxy</Message></Error>".encode()
    if head.method == "HEAD":
        body = b""
    return (
        f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class SlowLink:
    """A TCP relay whose answers trickle: at most `bytes_per_s`, over all connections together. It inspects nothing.

        async with SlowLink(bytes_per_s=4 << 20) as link:
            link.upstream_port = ...

    The pieces are small, so that bytes never stop coming for long.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.upstream_port = 0
        """Of the server behind it; may be set once the relay listens."""
        self.port = 0
        self.answer_bytes = 0
        """Passed on so far."""
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._free_at_s = 0.0

    async def __aenter__(self) -> SlowLink:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream: asyncio.StreamWriter | None = None
        try:
            up_reader, upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            ends = [
                asyncio.ensure_future(self._pass_on(reader, upstream, is_slow=False)),
                asyncio.ensure_future(self._pass_on(up_reader, writer, is_slow=True)),
            ]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for stream in (writer, upstream):
                if stream is not None:
                    stream.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_slow: bool) -> None:
        while data := await reader.read(_TRICKLE_BYTES):
            if is_slow:
                await self._take_turn(len(data))
                self.answer_bytes += len(data)
            writer.write(data)
            await writer.drain()

    async def _take_turn(self, size_bytes: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
        await asyncio.sleep(self._free_at_s - now_s)


@contextmanager
def proxy_in_thread(upstream_port: int, *, seed: int = 0) -> Iterator[FaultProxy]:
    """A proxy on a loop of its own. Rules may be added and cleared from any thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    proxy = FaultProxy(upstream_port, seed=seed)
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10)
        yield proxy
    finally:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
