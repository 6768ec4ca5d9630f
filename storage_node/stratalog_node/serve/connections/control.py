"""Control requests, which are all but Produce and Fetch: received as bytes, decoded in their turn, answered in order.

A request waits as the bytes that it came in, which count against its connection (`Connection.keep`): decoded it is up
to fifty times as large, and only the request whose turn it is on its connection is decoded. The node handles few large
requests at a time, and few of those that ask for everything, and none that is answered from memory while clients have
too many unread answers. Small requests may have large answers, too: a client that does not read gets no more answers
than its connection may hold, and only one while all clients have too many.
A thread decodes large requests and encodes large answers, so that the event loop stays free.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter_ns
from typing import Any, Protocol

from stratalog.kafka import messages
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import RequestHeader
from stratalog.machines.quotas.usage import ClientUsage
from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.answer import Parkable
from stratalog_node.serve.connections.client_quotas import QuotasOfClients
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices, RequestContext, RequestUsage
from stratalog_node.serve.connections.off_loop import FEW
from stratalog_node.serve.connections.registry import Api, Handler
from stratalog_node.serve.connections.serving import Serving
from stratalog_node.serve.connections.unsent_answers import UnsentAnswers

log = logger(__name__)

LARGE_BYTES = 16 << 10
"""A request above it is decoded in a thread: on the loop it would take up to some ten milliseconds and more."""
LARGE_AT_ONCE = 2
_ANSWERED_HERE = frozenset({3, 9, 10, 15, 16, 23, 29, 32, 35, 50, 69})
"""Questions that this node answers from its memory. All other requests may wait for a disk, a store, the meta service
or other members, and hold up no other request meanwhile: they wait for a slot for decoding only."""
_AT_ITS_TURN = frozenset({23})
"""Questions about what earlier answers of the same connection may have shown: asked while a fetch waits for data, where
an epoch ends is not known before that fetch is answered. In Kafka all requests are worked on at their turn."""
_METADATA, _OFFSET_FETCH, _LIST_GROUPS, _DESCRIBE_LOG_DIRS = 3, 9, 16, 35
_DESCRIBE_ACLS, _DESCRIBE_SCRAM_USERS = 29, 50
_GROUPS_SINCE = 8
"""OffsetFetch: several groups, each with its own topics."""


class RequestAudit(Protocol):
    """Notes the requests of some APIs for the audit log."""

    def describes(self, key: int) -> bool: ...

    def note(self, connection: ConnectionInfo, header: RequestHeader, request: bytes, answer: Any) -> None:
        """`answer`: what the handler returned; None: it was ended before it returned."""
        ...


class ControlRequests:
    """The control requests of all connections."""

    def __init__(self, serving: Serving, services: NodeServices, quotas: QuotasOfClients, audit: RequestAudit) -> None:
        self.serving = serving
        self.quotas = quotas
        self.audit = audit
        self.services = services
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)
        self.unsent_answers = UnsentAnswers(services.settings.queued_max_request_bytes)
        self._next = asyncio.Lock()
        """Held by the one that waits for room: the others wait behind it, and are not woken in vain."""

    def begin(self) -> None:
        """Have at hand what requests will need."""
        self.services.control.producer_ids.fill(self.services.meta)

    async def end(self) -> None:
        await self.services.control.producer_ids.close()

    async def begin_large(self, is_answered_here: bool) -> None:
        """Takes a place of `large`, to be released by the caller; for an answer from memory once there is room for it,
        in the order in which they came."""
        if not is_answered_here:
            await self.large.acquire()
            return
        async with self._next:
            while True:
                await self.unsent_answers.room()
                await self.large.acquire()
                if not self.unsent_answers.is_full:
                    return
                self.large.release()

    def handle(self, connection: Connection, api: Api, header: RequestHeader, frame: memoryview) -> None:
        """Raises: MalformedFrame for a request above the limit of control requests."""
        body = messages.body_of(api.key, frame, header.body_position)
        pending = _PendingControl(self, connection, api, header, body)
        connection.expect_answer(pending)
        connection.keep(pending, len(body))
        self.serving.stats.control_requests += 1
        connection.run_control(pending.work)


class _PendingControl(Parkable):
    """One request until its answer is ready."""

    __slots__ = (
        "_api",
        "_audited",
        "_body",
        "_connection",
        "_header",
        "_requests",
        "_unparked",
        "_usage",
        "on_first",
    )

    def __init__(
        self, requests: ControlRequests, connection: Connection, api: Api, header: RequestHeader, body: bytes
    ) -> None:
        super().__init__()
        self.on_first: Callable[[], None] | None = None
        self._requests = requests
        self._connection = connection
        self._usage = connection.usage
        self._api = api
        self._header = header
        self._body = body
        self._audited = body if requests.audit.describes(api.key) else None
        """The request as it came, until it was noted for the audit log."""
        self._unparked: asyncio.Event | None = None

    async def work(self) -> None:
        serving, api, connection = self._requests.serving, self._api, self._connection
        begin = serving.loop.time()
        try:
            if api.key in _AT_ITS_TURN:
                await self._wait_until_first()
            if api.key in _ANSWERED_HERE:
                await self._room()
            buffers = await self._answer()
        except asyncio.CancelledError:
            raise
        except MalformedFrame as error:
            connection.close(str(error), is_fault=True)
            return
        except Exception as fault:  # one handler's fault must not take the node down (F48)
            serving.stats.control_errors += 1
            log.error(
                "request failed",
                api=api.name,
                version=self._header.api_version,
                client=self._header.client_id,
                error=str(fault),
                exc_info=not isinstance(fault, StratalogError),
            )
            connection.close(f"{api.name} failed: {fault}")
            return
        if connection.is_closed:
            return
        self.buffers = buffers
        size = sum(map(len, buffers))
        connection.hold(self, size)
        self._requests.unsent_answers.hold(self, connection, size)
        serving.stats.control_duration.observe(int((serving.loop.time() - begin) * 1e6))
        connection.answer_ready()
        serving.turn.request()

    async def _wait_until_first(self) -> None:
        """Returns once all answers before it are ready. Closing the connection cancels the wait."""
        if not self._connection.is_first(self):
            is_first = asyncio.Event()
            self.on_first = is_first.set
            await is_first.wait()
            self.on_first = None

    async def _room(self) -> None:
        """Returns once its answer may be held. Closing the connection cancels the wait."""
        while not self.has_room():
            self._unparked = asyncio.Event()
            self._connection.park(self)
            await self._unparked.wait()

    def has_room(self) -> bool:
        connection = self._connection
        return connection.is_next(self) or (connection.may_hold_more and not self._requests.unsent_answers.is_full)

    def unpark(self) -> bool:
        assert self._unparked is not None
        self._unparked.set()
        return True

    async def _answer(self) -> list[bytes]:
        requests, key = self._requests, self._api.key
        request = None
        if len(self._body) <= LARGE_BYTES:
            request = self._decode()
            if not _asks_for_all(key, self._header.api_version, request):
                return await self._handle(request)
        is_answered_here = key in _ANSWERED_HERE
        await requests.begin_large(is_answered_here)
        try:
            if request is None:
                request = await asyncio.to_thread(self._decode)
            if is_answered_here:
                return await self._handle(request)
        finally:
            requests.large.release()
        return await self._handle(request)

    def _decode(self) -> Any:
        body, self._body = self._body, b""
        return messages.decode_body(self._api.key, self._header.api_version, body)

    async def _handle(self, request: Any) -> list[bytes]:
        handler = self._api.handler
        assert handler is not None
        header, connection = self._header, self._connection
        response = None
        try:
            if self._usage is None:
                context = RequestContext(self._requests.services, header, connection.info, connection.rights)
                response = await handler(context, request)
            else:
                response = await self._handle_counted(self._usage, handler, request)
        finally:
            audited, self._audited = self._audited, None
            if audited is not None:
                self._requests.audit.note(connection.info, header, audited, response)
        if messages.has_more_entries(response, FEW):
            response = await asyncio.to_thread(_encoded, response)
        if connection.muted_until_ms:
            response = messages.with_throttle_time(self._api.key, header.api_version, response, connection.throttle_ms)
        return messages.response_buffers(self._api.key, header.api_version, header.correlation_id, response)

    async def _handle_counted(self, usage: ClientUsage, handler: Handler, request: Any) -> Any:
        """Of a client with quotas."""
        services, connection, quotas = self._requests.services, self._connection, self._requests.quotas
        used = RequestUsage(usage, self._requests.serving.turn.monotonic_ms)
        work = _Timed(
            handler(RequestContext(services, self._header, connection.info, connection.rights, used), request)
        )
        response = await work
        quotas.mutated(connection, used.wait_ms)
        quotas.worked(connection, usage, work.spent_ns)
        return response


class _Timed:
    """Awaits some work, and counts for how long its steps keep the event loop."""

    __slots__ = ("_work", "spent_ns")

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work
        self.spent_ns = 0

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._work.__await__()
        failure: BaseException | None = None
        while True:
            begin_ns = perf_counter_ns()
            try:
                waits_for = steps.send(None) if failure is None else steps.throw(failure)
            except StopIteration as done:
                return done.value
            finally:
                self.spent_ns += perf_counter_ns() - begin_ns
            failure = None
            try:
                yield waits_for
            except BaseException as error:
                failure = error


def _asks_for_all(key: int, version: int, request: Any) -> bool:
    """A few bytes whose answer is as large as what the node holds."""
    if key == _OFFSET_FETCH and version >= _GROUPS_SINCE:
        return any(group.topics is None for group in request.groups)
    if key in (_METADATA, _OFFSET_FETCH, _DESCRIBE_LOG_DIRS):
        return request.topics is None or (key == _METADATA and version == 0 and not request.topics)
    if key == _DESCRIBE_SCRAM_USERS:
        return not request.users
    return key in (_LIST_GROUPS, _DESCRIBE_ACLS)


def _encoded(response: Any) -> messages.EncodedBody:
    return messages.EncodedBody(messages.encode_entity(response))
