"""The meta service over HTTP: `MetaClient` for parts that live in another process.

The caller closes it. Lives on the event loop that first uses it; any number of tasks may use it at once.
Importing it costs 0.3 s (aiohttp).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from stratalog.machines.plans.heartbeat_history import Course
from stratalog.machines.plans.shard_troubles import Trouble
from stratalog.meta_api import wire
from stratalog.meta_api.attempts import UNAUTHORIZED_ATTEMPTS, Repeat, RetryPolicy, policy_for
from stratalog.meta_api.endpoints import Endpoints, parse_endpoints
from stratalog.meta_api.gathered import GatheredCommands
from stratalog.meta_api.json_shape import JsonShape, NotOfShape
from stratalog.meta_api.streams import SnapshotReader
from stratalog.meta_api.transport import Transport
from stratalog.meta_api.watch_lines import WatchReader
from stratalog.meta_api.wire import SegmentCommand
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unauthorized, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, Heard, Heartbeat, Node, Snapshot
from stratalog.model.mounts import Mount
from stratalog.model.segment import Segment
from stratalog.model.tokens import Token
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import ListAsk, SegmentPage, ShardPage, TopicPage, TroublePage
from stratalog.model.views.outline import Outline
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.rights_view import RightsView
from stratalog.model.views.status_page import Overview
from stratalog.tls.outgoing import ClientTls

R = TypeVar("R")
_HEARTBEAT: Final = RetryPolicy(attempts=2, attempt_s=1.0)
"""The next one comes anyway, and must not wait long behind an instance that hangs, nor at all behind what the shards of
a node ask for after a fault: a lease would run out meanwhile."""
_WATCH_DOUBLINGS: Final = 3
"""The pause before a watch is taken up grows no further: what a node does not hear it does not do."""


def _query(ask: ListAsk, **more: object) -> str:
    asked: dict[str, object] = {
        "search": ask.search,
        "sort": ask.sort,
        "descending": "true" if ask.is_descending else "false",
        "offset": ask.offset,
        "limit": ask.limit,
    }
    return urlencode(asked | more)


class HttpMetaClient:
    """Implements `MetaClient`."""

    def __init__(
        self,
        urls: str,
        policy: RetryPolicy | None = None,
        *,
        token: Token | None = None,
        tls: ClientTls | None = None,
        with_credentials: bool = False,
    ) -> None:
        """`urls` names one instance of the service or, with commas between, several; `token` is shown to them, and
        `tls` is spoken with those of https://. `with_credentials`: a node reads, which needs those of users. Raises
        InvalidRequest."""
        endpoints = parse_endpoints(urls)
        self._made_of = (urls, policy, token, tls)
        self._with_credentials = with_credentials
        self._transport = Transport(Endpoints(endpoints), policy or policy_for(len(endpoints)), token, tls)
        self._gathered = {
            repeat: GatheredCommands(repeat, self._transport.ask_once) for repeat in (Repeat.IDEMPOTENT, Repeat.NEVER)
        }

    def another(self) -> HttpMetaClient:
        """A client of the same service and cluster, for another event loop; its taker closes it."""
        urls, policy, token, tls = self._made_of
        made = HttpMetaClient(urls, policy, token=token, tls=tls, with_credentials=self._with_credentials)
        made._transport.cluster_id = self._transport.cluster_id
        return made

    @property
    def answered(self) -> str | None:
        """The instance that answered last, which leads; None since a request failed."""
        return self._transport.answered_url

    async def close(self) -> None:
        for line in self._gathered.values():
            await line.close()
        await self._transport.close()

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        known = wire.wire_of(command)
        path, repeat = known.path, Repeat.IDEMPOTENT if command.is_idempotent else Repeat.NEVER
        if isinstance(command, SegmentCommand) and not validate_only:
            ask: Callable[[], Awaitable[Any]] = partial(self._gathered[repeat].attempt, command)  # a Segment, as R is
            return await self._transport.persist(ask, repeat)
        if validate_only:
            path, repeat = f"{path}?validate_only=true", Repeat.READ
        answer = await self._transport.request(path, known.body.write(command), repeat)
        try:
            return known.answer.read(answer)
        except NotOfShape as error:
            kind = Unavailable if validate_only else OutcomeUnknown
            raise kind(f"POST {path}: the answer cannot be read ({error}): read before acting again") from error

    async def heartbeat(self, heartbeat: Heartbeat) -> Heard:
        answer = await self._transport.request(
            "/v1/heartbeat", wire.HEARTBEAT.write(heartbeat), Repeat.READ, policy=_HEARTBEAT, waits=False
        )
        try:
            return wire.HEARD.read(answer)
        except NotOfShape as error:
            raise Unavailable(f"POST /v1/heartbeat: the answer cannot be read ({error}): send the next one") from error

    async def _read(self, path: str, answer: JsonShape[R]) -> R:
        received = await self._transport.request(path, None, Repeat.READ)
        try:
            return answer.read(received)
        except NotOfShape as error:
            raise Unavailable(f"GET {path}: the answer cannot be read ({error}): read again") from error

    async def read_cluster_id(self) -> str:
        """Further requests are for that cluster alone: another's metadata under the same address raise Fenced."""
        cluster_id = (await self._read("/v1/cluster", wire.CLUSTER)).cluster_id
        self._transport.cluster_id = cluster_id
        return cluster_id

    async def read_version(self) -> int:
        return (await self._read("/v1/cluster", wire.CLUSTER)).version

    async def topic(self, topic_id: UUID) -> Topic:
        return await self._read(f"/v1/topics/{topic_id}", wire.TOPIC)

    async def shard(self, key: ShardKey) -> Shard:
        """One shard. Raises NotFound."""
        return await self._read(f"/v1/topics/{key.topic_id}/shards/{key.shard}", wire.SHARD)

    async def segment(self, key: SegmentKey) -> Segment:
        """One segment, living or DELETED. Raises NotFound."""
        shard = f"/v1/topics/{key.topic_id}/shards/{key.shard}"
        return await self._read(f"{shard}/segments/{key.epoch}/{key.base_offset}", wire.SEGMENT)

    async def nodes(self) -> tuple[Node, ...]:
        return (await self._read("/v1/nodes", wire.NODES)).items

    async def retirements(self) -> tuple[RetirementStatus, ...]:
        """Nodes that leave, or have left."""
        return (await self._read("/v1/retirements", wire.RETIREMENTS)).items

    async def troubles(self, limit: int | None = None) -> tuple[Trouble, ...]:
        """Shards that need attention, up to the given number."""
        query = "" if limit is None else f"?limit={limit}"
        return (await self._read(f"/v1/troubles{query}", wire.TROUBLES)).items

    async def deleted_segments(self) -> list[Segment]:
        return list((await self._read("/v1/deleted-segments", wire.SEGMENTS)).items)

    async def purged_topics(self) -> frozenset[UUID]:
        return frozenset((await self._read("/v1/purged-topics", wire.TOPIC_IDS)).items)

    async def mounts(self) -> tuple[Mount, ...]:
        return (await self._read("/v1/mounts", wire.MOUNTS)).items

    async def overview(self) -> Overview:
        """What the cluster UI shows: also what nodes last told of themselves."""
        return await self._read("/v1/overview", wire.OVERVIEW)

    async def outline(self) -> Outline:
        """All but the shards, which are summed up."""
        return await self._read("/v1/outline", wire.OUTLINE)

    async def rights(self, known: int | None = None) -> RightsView:
        """All rules, names of credentials and quotas; nothing of it if the version that is `known` is still right."""
        query = "" if known is None else f"?known={known}"
        return await self._read(f"/v1/rights{query}", wire.RIGHTS)

    async def courses(self, after_ms: int) -> tuple[Course, ...]:
        """How it went with the nodes after that."""
        return (await self._read(f"/v1/courses?after={after_ms}", wire.COURSES)).items

    async def topic_page(self, ask: ListAsk) -> TopicPage:
        """Raises InvalidRequest, as the other pages."""
        return await self._read(f"/v1/lists/topics?{_query(ask)}", wire.TOPIC_PAGE)

    async def shard_page(self, topic: str, ask: ListAsk) -> ShardPage:
        """Raises NotFound."""
        return await self._read(f"/v1/lists/shards?{_query(ask, topic=topic)}", wire.SHARD_PAGE)

    async def segment_page(self, topic: str, shard: int, ask: ListAsk, place: str = "") -> SegmentPage:
        """Raises NotFound."""
        query = _query(ask, topic=topic, shard=shard, place=place)
        return await self._read(f"/v1/lists/segments?{query}", wire.SEGMENT_PAGE)

    async def trouble_page(self, ask: ListAsk, kind: str = "") -> TroublePage:
        return await self._read(f"/v1/lists/troubles?{_query(ask, kind=kind)}", wire.TROUBLE_PAGE)

    async def snapshot(self) -> Snapshot:
        attempt = 0
        while True:
            try:
                return await self._snapshot()
            except Unavailable as error:
                attempt += 1
                most = UNAUTHORIZED_ATTEMPTS if isinstance(error, Unauthorized) else self._transport.policy.attempts
                if attempt >= most:
                    raise
            await self._transport.pause(attempt)

    async def _snapshot(self) -> Snapshot:
        reader = SnapshotReader()
        path = "/v1/snapshot?credentials=true" if self._with_credentials else "/v1/snapshot"
        async with self._transport.lines(path, self._transport.policy.attempt_s) as lines:
            count = 0
            async for line in lines:
                reader.add(line)
                count += 1
                if count % 256 == 0:
                    await asyncio.sleep(0)  # a large cluster's snapshot must not hold the loop
        return reader.finish()

    async def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        """Connects again after the last version it gave, for as long as its policy says."""
        policy = self._transport.policy
        loop = asyncio.get_running_loop()
        heard_at, attempt = loop.time(), 0
        asked = "&credentials=true" if self._with_credentials else ""
        while True:
            reader = WatchReader()
            trouble: StratalogError = Unavailable("the stream of changes ended")
            try:
                async with self._transport.lines(f"/v1/watch?after={after_version}{asked}", policy.silence_s) as lines:
                    async for line in lines:
                        change_set = reader.read(line) if line else None
                        heard_at, attempt = loop.time(), 0
                        if change_set is not None and change_set.version > after_version:
                            after_version = change_set.version
                            yield change_set
            except (Unavailable, OutcomeUnknown) as error:
                trouble = error
            if loop.time() - heard_at > policy.watch_gap_s:
                raise Unavailable(f"the watch broke off and could not be taken up again: {trouble}") from trouble
            await self._transport.pause(min(attempt, _WATCH_DOUBLINGS))
            attempt += 1
