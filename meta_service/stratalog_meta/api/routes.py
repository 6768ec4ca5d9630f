"""What the meta service answers over HTTP: one table of routes; server and OpenAPI description are made from it.

Handlers know no HTTP library: they get a `Call` and return JSON. What they raise becomes a problem. Every command has a
route, made from its description; what is read has paths that name a segment by topic id, shard, epoch and base offset,
as its key does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from stratalog.machines.audit.commands import changes_of, error_name, is_audited, outcome_of
from stratalog.machines.audit.lines import Asker, AuditLine
from stratalog.machines.plans.shard_troubles import troubles
from stratalog.meta_api import wire
from stratalog.meta_api.json_shape import NotOfShape
from stratalog.meta_api.wire import (
    ClusterInfo,
    CommandWire,
    CourseList,
    MountList,
    NodeList,
    RetirementList,
    SegmentAnswers,
    SegmentCommand,
    SegmentCommands,
    SegmentList,
    TopicIds,
    TopicList,
    TroubleList,
)
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import Forbidden, InvalidRequest, OutcomeUnknown, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Heard, Heartbeat
from stratalog.model.roles import FOR_PARTS, FOR_VIEWERS, Needs
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import MAX_LISTED, ListAsk, SegmentPage, ShardPage, TopicPage, TroublePage
from stratalog.model.views.outline import Outline
from stratalog.model.views.rights_view import RightsView
from stratalog.model.views.status_page import Overview
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.logs import logger
from stratalog_meta.api.callers import ANYONE, Caller
from stratalog_meta.api.needs import NEEDS
from stratalog_meta.service import MetaService

_log = logger(__name__)
MAX_TOPICS_LISTED: Final = 1_000
MAX_COMMANDS_TOGETHER: Final = 1_000
MAX_TROUBLES_LISTED: Final = 1_000
MAX_OFFSET: Final = 10**9


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what its path and query say, and its body."""

    service: MetaService
    params: Mapping[str, str]
    query: Mapping[str, str]
    raw: bytes
    is_connected: Callable[[], bool]
    """Whether the client is still connected."""
    asker: Asker
    audit: AuditLog = NO_AUDIT
    caller: Caller = ANYONE

    def check(self, command: Command[Any]) -> None:
        """That its sender may ask for this. Raises: Forbidden, which the audit log counts."""
        try:
            self.caller.check_command(command)
        except Forbidden:
            self.audit.denied(self.asker, type(command).__name__, "META", "commands", Forbidden.__name__)
            raise

    def number(self, name: str) -> int:
        return read_number(self.params[name], f"{name} in the path")

    @property
    def topic_id(self) -> UUID:
        try:
            return UUID(self.params["topic_id"])
        except ValueError as error:
            raise InvalidRequest(
                f"{self.params['topic_id']!r:.80} is not a topic id: give the UUID, not the name"
            ) from error

    @property
    def shard_key(self) -> ShardKey:
        return ShardKey(self.topic_id, self.number("shard"))

    @property
    def segment_key(self) -> SegmentKey:
        return SegmentKey(self.topic_id, self.number("shard"), self.number("epoch"), self.number("base_offset"))


def read_number(text: str, what: str, most: int = 2**63 - 1) -> int:
    """Raises InvalidRequest for anything but a number from 0 to `most`."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise InvalidRequest(f"{what} must be a number from 0 to {most}, not {text!r:.40}")
    return int(text)


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """A JSON object that ends in a list of segments. There may be thousands, so the server makes it in pieces."""

    before: bytes
    segments: Sequence[Segment]
    after: bytes = b"]}"


Answer: TypeAlias = bytes | LongAnswer
Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    summary: str
    handler: Handler
    answer: object
    """The type of what it answers."""
    body: type | None = None
    needs: Needs = FOR_VIEWERS


# Commands -------------------------------------------------------------------------------------------------------
async def _perform(known: CommandWire[Any], call: Call) -> Answer:
    try:
        command = known.body.read(call.raw)
    except NotOfShape as error:
        raise InvalidRequest(f"{known.kind.__name__}: {error}: see /openapi.json for what is expected") from error
    call.check(command)
    validate_only = call.query.get("validate_only", "false")
    if validate_only not in ("true", "false"):
        raise InvalidRequest(f"validate_only must be true or false, not {validate_only!r:.40}")
    if validate_only == "false" and is_audited(command):
        answer = await _perform_audited(call, command)
    else:
        answer = await call.service.perform(command, validate_only=validate_only == "true")
    return _long_shard(answer) if isinstance(answer, Shard) else known.answer.write(answer)


async def _perform_audited(call: Call, command: Command[Any]) -> Any:
    """Notes who asked for what and how it ended, whatever the end is."""
    at_ms, audit = call.audit.wall_ms(), call.audit
    names = await _topic_names(call.service, command)
    answer, failed = None, None
    try:
        answer = await call.service.perform(command)
        return answer
    except BaseException as error:
        failed = error
        raise
    finally:
        audit.later(call.asker, partial(_audit_lines, at_ms, call.asker, command, answer, failed, names), len(call.raw))


def _audit_lines(
    at_ms: int,
    asker: Asker,
    command: Command[Any],
    answer: object,
    failed: BaseException | None,
    names: Mapping[UUID, str],
) -> Iterator[AuditLine]:
    for change, why in changes_of(command, answer, failed, lambda topic_id: names.get(topic_id, str(topic_id))):
        yield AuditLine(at_ms, asker, change, outcome_of(why), error_name(why))


async def _topic_names(service: MetaService, command: Command[Any]) -> Mapping[UUID, str]:
    """The name of the topic that the command is about: after a deletion no record has it."""
    segment = getattr(command, "segment", None)
    topic_id = segment.topic_id if segment is not None else getattr(command, "topic_id", None)
    if topic_id is None:
        return {}
    try:
        return {topic_id: (await service.topic(topic_id)).name}
    except StratalogError:
        return {}


async def _perform_several(call: Call) -> Answer:
    """Each by itself: one that is refused keeps no other from being done."""
    try:
        asked = wire.SEGMENT_COMMANDS.read(call.raw).items
    except NotOfShape as error:
        raise InvalidRequest(f"SegmentCommands: {error}: see /openapi.json for what is expected") from error
    if len(asked) > MAX_COMMANDS_TOGETHER:
        raise InvalidRequest(f"{len(asked)} commands in one request: at most {MAX_COMMANDS_TOGETHER}. Nothing was done")
    answers = await asyncio.gather(*(_answer_of(call, command) for command in asked))
    return wire.SEGMENT_ANSWERS.write(tuple(answers))


async def _answer_of(call: Call, command: SegmentCommand) -> Segment | StratalogError:
    try:
        call.check(command)
        return await call.service.perform(command)
    except StratalogError as error:
        return error
    except Exception as fault:  # a bug; the other commands get their answers anyway (F48)
        _log.exception("command failed with an internal error", command=type(command).__name__)
        return OutcomeUnknown(f"{type(command).__name__} failed inside ({fault!r}): read before acting again")


def _route_of(known: CommandWire[Any]) -> Route:
    summary, _, _ = (inspect.getdoc(known.kind) or "").replace("\n", " ").partition(". ")
    return Route(
        "POST", known.path, summary.rstrip("."), partial(_perform, known), known.answers, known.kind, NEEDS[known.kind]
    )


async def _heartbeat(call: Call) -> Answer:
    try:
        heartbeat = wire.HEARTBEAT.read(call.raw)
    except NotOfShape as error:
        raise InvalidRequest(f"Heartbeat: {error}: see /openapi.json for what is expected") from error
    call.caller.check_node(heartbeat.life.node_id)
    return wire.HEARD.write(await call.service.heartbeat(heartbeat, call.is_connected))


# Reading --------------------------------------------------------------------------------------------------------
async def _cluster(call: Call) -> Answer:
    snapshot = await call.service.snapshot()
    counts = len(snapshot.nodes), len(snapshot.topics), len(snapshot.shards)
    return wire.CLUSTER.write(
        ClusterInfo(call.service.cluster_id, snapshot.version, *counts, why_no_changes=call.service.why_no_changes)
    )


async def _nodes(call: Call) -> Answer:
    return wire.NODES.write(NodeList(call.caller.shown((await call.service.snapshot()).nodes)))


async def _mounts(call: Call) -> Answer:
    return wire.MOUNTS.write(MountList((await call.service.snapshot()).mounts))


async def _topics(call: Call) -> Answer:
    """All topics, or those of one name; `after` and `limit` go through them by name."""
    topics = sorted((await call.service.snapshot()).topics, key=lambda topic: topic.name)
    name, after = call.query.get("name"), call.query.get("after", "")
    limit = read_number(call.query.get("limit", str(MAX_TOPICS_LISTED)), "limit", MAX_TOPICS_LISTED)
    chosen = [topic for topic in topics if (name is None or topic.name == name) and topic.name > after]
    return wire.TOPICS.write(TopicList(tuple(chosen[:limit])))


async def _topic(call: Call) -> Answer:
    return wire.TOPIC.write(await call.service.topic(call.topic_id))


async def _shard(call: Call) -> Answer:
    return _long_shard(await call.service.shard(call.shard_key))


def _long_shard(shard: Shard) -> LongAnswer:
    before, opening, _ = wire.SHARD.write(Shard(shard.key, shard.log_start_offset, ())).rpartition(b"[")
    return LongAnswer(before + opening, shard.segments)


async def _segment(call: Call) -> Answer:
    return wire.SEGMENT.write(await call.service.segment(call.segment_key))


async def _deleted(call: Call) -> Answer:
    return LongAnswer(b'{"items":[', await call.service.deleted_segments())


async def _troubles(call: Call) -> Answer:
    limit = read_number(call.query.get("limit", str(MAX_TROUBLES_LISTED)), "limit", MAX_TROUBLES_LISTED)
    found = troubles(await call.service.snapshot(), call.service.now_ms(), call.service.min_in_sync)
    return wire.TROUBLES.write(TroubleList(tuple(islice(found, limit))))


async def _retirements(call: Call) -> Answer:
    return wire.RETIREMENTS.write(RetirementList(tuple(await call.service.retirements())))


async def _overview(call: Call) -> Answer:
    return wire.OVERVIEW.write(await call.service.overview())


async def _outline(call: Call) -> Answer:
    outline = await call.service.outline()
    return wire.OUTLINE.write(replace(outline, nodes=call.caller.shown(outline.nodes)))


async def _rights(call: Call) -> Answer:
    known = read_number(call.query["known"], "known") if "known" in call.query else None
    return wire.RIGHTS.write(await call.service.rights(known))


async def _courses(call: Call) -> Answer:
    after_ms = read_number(call.query.get("after", "0"), "after")
    return wire.COURSES.write(CourseList(tuple(await call.service.courses(after_ms))))


def _ask(call: Call) -> ListAsk:
    query = call.query
    return ListAsk(
        query.get("search", ""),
        query.get("sort", ""),
        query.get("descending", "false") == "true",
        read_number(query.get("offset", "0"), "offset", MAX_OFFSET),
        read_number(query.get("limit", "50"), "limit", MAX_LISTED),
    )


async def _topic_lines(call: Call) -> Answer:
    return wire.TOPIC_PAGE.write(await call.service.topic_page(_ask(call)))


async def _shard_lines(call: Call) -> Answer:
    return wire.SHARD_PAGE.write(await call.service.shard_page(call.query.get("topic", ""), _ask(call)))


async def _segment_lines(call: Call) -> Answer:
    shard = read_number(call.query.get("shard", ""), "shard", 2**31 - 1)
    topic, place = call.query.get("topic", ""), call.query.get("place", "")
    return wire.SEGMENT_PAGE.write(await call.service.segment_page(topic, shard, _ask(call), place))


async def _trouble_lines(call: Call) -> Answer:
    return wire.TROUBLE_PAGE.write(await call.service.trouble_page(_ask(call), call.query.get("kind", "")))


async def _purged_topics(call: Call) -> Answer:
    return wire.TOPIC_IDS.write(TopicIds(tuple(sorted(await call.service.purged_topics()))))


_PAGED: Final = "search, sort, descending, offset, limit"
_SHARD: Final = "/v1/topics/{topic_id}/shards/{shard}"

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/cluster", "The cluster's id and sizes", _cluster, ClusterInfo),
    Route("GET", "/v1/nodes", "Registered nodes", _nodes, NodeList),
    Route("GET", "/v1/mounts", "Mounts and who holds them", _mounts, MountList),
    Route("GET", "/v1/topics", "Topics by name; query: name, after, limit", _topics, TopicList),
    Route("GET", "/v1/topics/{topic_id}", "One topic", _topic, Topic),
    Route("GET", _SHARD, "A shard and its segments", _shard, Shard),
    Route("GET", _SHARD + "/segments/{epoch}/{base_offset}", "One segment", _segment, Segment),
    Route("GET", "/v1/deleted-segments", "Segments that wait for their purge", _deleted, SegmentList),
    Route("GET", "/v1/purged-topics", "Topics of which nothing is left", _purged_topics, TopicIds),
    Route("GET", "/v1/troubles", "Shards that need attention; query: limit", _troubles, TroubleList),
    Route(
        "GET", "/v1/retirements", "Nodes that leave, or have left, and how far they are", _retirements, RetirementList
    ),
    Route("GET", "/v1/overview", "What the cluster UI shows, summed up", _overview, Overview),
    Route("GET", "/v1/outline", "Nodes, topics and mounts; shards are summed up", _outline, Outline),
    Route("GET", "/v1/rights", "Rules (ACLs), SCRAM users without keys, and quotas; query: known", _rights, RightsView),
    Route(
        "GET", "/v1/courses", "How it went with the nodes lately; query: after (ms since 1970)", _courses, CourseList
    ),
    Route("GET", "/v1/lists/topics", f"A page of topics with sums; {_PAGED}", _topic_lines, TopicPage),
    Route("GET", "/v1/lists/shards", f"A page of a topic's shards; query: topic, {_PAGED}", _shard_lines, ShardPage),
    Route(
        "GET",
        "/v1/lists/segments",
        f"A page of a shard's segments; query: topic, shard, place, {_PAGED}",
        _segment_lines,
        SegmentPage,
    ),
    Route("GET", "/v1/lists/troubles", f"A page of troubles; query: kind, {_PAGED}", _trouble_lines, TroublePage),
    Route("POST", "/v1/heartbeat", "A node lives", _heartbeat, Heard, Heartbeat, FOR_PARTS),
    Route(
        "POST",
        wire.SEGMENT_COMMANDS_PATH,
        "Commands about segments, each by itself; answered in the same order",
        _perform_several,
        SegmentAnswers,
        SegmentCommands,
        FOR_PARTS,
    ),
    *map(_route_of, wire.COMMAND_WIRES.values()),
)
