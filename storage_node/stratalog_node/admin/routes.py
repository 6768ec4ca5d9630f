"""The admin API over HTTP: decodes requests, encodes answers, and gives every error its status (see `admin_api`)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from stratalog.admin_api.cuts import CutRequest, HoldRequest
from stratalog.admin_api.errors import error_body, http_status_of
from stratalog.admin_api.models import AlterTopic, CreateTopic, SealRequest, VerifyRequest
from stratalog.admin_api.mounts import CreateMountRequest, EndMountRequest, MoveMountRequest
from stratalog.admin_api.node_views import RecordStart
from stratalog.admin_api.rolls import RollElsewhereRequest
from stratalog.machines.audit.commands import MOUNT, TOPIC, error_name, outcome_of
from stratalog.machines.audit.lines import Change
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.model.roles import FOR_ADMINS, FOR_OPERATORS, FOR_OPERATORS_AND_PARTS, FOR_VIEWERS, Needs
from stratalog.model.views.cluster_lists import ListAsk
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.http_port import asker_of, body_of, declare, require
from stratalog.telemetry.logs import logger
from stratalog_node.admin.find import SearchRequest
from stratalog_node.admin.node_admin import NodeAdmin
from stratalog_node.admin.node_views import NodeViews

if TYPE_CHECKING:
    from aiohttp import web

M = TypeVar("M", bound=BaseModel)
Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]

_SEND_BYTES: Final = 64 << 10
_MOST_ENTRIES: Final = 1_000
"""Limit for a request's body, and for each list or object in it."""

_log = logger(__name__)


def add_admin_routes(
    application: web.Application, admin: NodeAdmin, views: NodeViews, audit: AuditLog = NO_AUDIT
) -> None:
    """Hand this to `TelemetryServer(add_routes=...)`."""
    from aiohttp import web

    routes = _Routes(admin, views, web.RequestKey("change", Change))

    def _guarded(handler: Handler) -> Handler:
        return _answering(_noting(handler, audit, routes.change))

    declare(application, NEEDS)
    for method, path, name, _ in _TABLE:
        handler = _guarded(getattr(routes, name))
        if method == "GET":
            application.router.add_get(path, handler)
        else:
            application.router.add_route(method, path, handler)


_TABLE: Final = (
    ("GET", "/v1/shards", "shards", FOR_VIEWERS),
    ("GET", "/v1/topic-settings", "topic_settings", FOR_VIEWERS),
    ("GET", "/v1/groups", "groups", FOR_VIEWERS),
    ("GET", "/v1/group", "group", FOR_VIEWERS),
    ("GET", "/v1/clients", "clients", FOR_VIEWERS),
    ("GET", "/v1/records", "records", FOR_OPERATORS_AND_PARTS),
    ("GET", "/v1/history", "history", FOR_VIEWERS),
    ("GET", "/v1/status", "status", FOR_VIEWERS),
    ("GET", "/v1/topics", "topics", FOR_VIEWERS),
    ("POST", "/v1/topics", "create_topic", FOR_OPERATORS),
    ("GET", "/v1/topics/{name}", "topic", FOR_VIEWERS),
    ("PATCH", "/v1/topics/{name}", "alter_topic", FOR_OPERATORS),
    ("DELETE", "/v1/topics/{name}", "delete_topic", FOR_ADMINS),
    ("GET", "/v1/topics/{name}/find", "find", FOR_OPERATORS),
    ("GET", "/v1/segments", "segments", FOR_VIEWERS),
    ("GET", "/v1/locate", "locate", FOR_VIEWERS),
    ("POST", "/v1/seal", "seal", FOR_OPERATORS),
    ("POST", "/v1/verify", "verify", FOR_OPERATORS),
    ("POST", "/v1/roll-elsewhere", "roll_elsewhere", FOR_OPERATORS),
    ("GET", "/v1/mounts", "mounts", FOR_VIEWERS),
    ("POST", "/v1/mounts", "create_mount", FOR_OPERATORS),
    ("POST", "/v1/mounts/move", "move_mount", FOR_OPERATORS),
    ("POST", "/v1/mounts/end", "end_mount", FOR_OPERATORS),
    ("POST", "/v1/cuts/hold", "hold_cut", FOR_OPERATORS),
    ("POST", "/v1/cuts/release", "release_cut", FOR_OPERATORS),
    ("POST", "/v1/cuts/confirm", "confirm_cut", FOR_OPERATORS),
)
"""Method, path, the handler's name in `_Routes`, and the role that it needs. Ending a mount by force needs more."""
NEEDS: Final[Mapping[tuple[str, str], Needs]] = {(method, path): needs for method, path, _, needs in _TABLE}


def _noting(handler: Handler, audit: AuditLog, key: web.RequestKey[Change]) -> Handler:
    """Note what the handler was about to change, with how it ended, in the audit log."""

    async def noting(request: web.Request) -> web.StreamResponse:
        failed: BaseException | None = None
        try:
            return await handler(request)
        except BaseException as error:
            failed = error
            raise
        finally:
            change = request.get(key)
            if change is not None:
                audit.change(asker_of(request), change, outcome_of(failed), error_name(failed))

    return noting


def _answering(handler: Handler) -> Handler:
    """Turn our errors into answers. Others are bugs: they are logged once here and answered 500 without details."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        try:
            return await handler(request)
        except StratalogError as error:
            body, status = error_body(error), http_status_of(error)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            _log.exception("admin request failed", method=request.method, path=request.path)
            body, status = error_body(StratalogError("internal error: see the node's log")), 500
        return web.Response(body=body, status=status, content_type="application/json")

    return guarded


class _Routes:
    def __init__(self, admin: NodeAdmin, views: NodeViews, change: web.RequestKey[Change]) -> None:
        self.change = change
        self._admin = admin
        self._views = views

    # Looks for the cluster UI ---------------------------------------------------------------------------------------
    async def shards(self, request: web.Request) -> web.StreamResponse:
        asked = [_number(one, "shard") for one in request.query.getall("shard", ())]
        return _answer(await self._views.shards(request.query.get("topic", ""), asked))

    async def topic_settings(self, request: web.Request) -> web.StreamResponse:
        return _answer(self._views.settings(request.query.get("topic", "")))

    async def groups(self, request: web.Request) -> web.StreamResponse:
        return _answer(self._views.groups(_list_ask(request)))

    async def group(self, request: web.Request) -> web.StreamResponse:
        return _answer(await self._views.group(request.query.get("id", ""), _list_ask(request)))

    async def clients(self, request: web.Request) -> web.StreamResponse:
        return _answer(self._views.clients(_list_ask(request)))

    async def records(self, request: web.Request) -> web.StreamResponse:
        """Encoded on a thread: an answer may have megabytes."""
        from aiohttp import web

        query = request.query
        start = query.get("from", RecordStart.NEWEST.value)
        if start not in list(RecordStart):
            raise InvalidRequest(f"from={start[:40]!r}: expected one of {', '.join(RecordStart)}")
        at = _number(query.get("at", "0"), "at")
        if not 0 <= at < 1 << 63:
            raise InvalidRequest(f"at={at}: expected an offset, or a time in ms since 1970")
        limit = _number(query.get("limit", "50"), "limit")
        shard = _integer(request, "shard")
        page = await self._views.records(query.get("topic", ""), shard, RecordStart(start), at, limit)
        body = await asyncio.to_thread(_line, page)
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def history(self, _request: web.Request) -> web.StreamResponse:
        return _answer(self._views.history())

    # The node's own API ---------------------------------------------------------------------------------------------
    async def status(self, _request: web.Request) -> web.StreamResponse:
        return _answer(await self._admin.status())

    async def topics(self, request: web.Request) -> web.StreamResponse:
        return await _stream(request, self._admin.topics())

    async def topic(self, request: web.Request) -> web.StreamResponse:
        return _answer(await self._admin.topic(request.match_info["name"]))

    async def create_topic(self, request: web.Request) -> web.StreamResponse:
        body = _body(request, CreateTopic)
        if not body.validate_only:
            details = {
                "shards": body.shards,
                "replication_factor": body.replication_factor,
                "settings": list(body.settings),
            }
            request[self.change] = Change("CreateTopic", TOPIC, body.name, details)
        return _answer(await self._admin.create_topic(body), status=201)

    async def alter_topic(self, request: web.Request) -> web.StreamResponse:
        name, body = request.match_info["name"], _body(request, AlterTopic)
        details: dict[str, object] = {"set": list(body.set), "unset": body.unset, "shards": body.shards}
        request[self.change] = Change("AlterTopic", TOPIC, name, details)
        return _answer(await self._admin.alter_topic(name, body))

    async def delete_topic(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        name = request.match_info["name"]
        request[self.change] = Change("DeleteTopic", TOPIC, name)
        await self._admin.delete_topic(name)
        return web.Response(status=204)

    async def find(self, request: web.Request) -> web.StreamResponse:
        """Encoded on a thread: an answer may have a megabyte."""
        from aiohttp import web

        wish = _wish(request)
        answer = await self._admin.finder.find(wish)
        body = await asyncio.to_thread(_line, answer)
        return web.Response(body=body, content_type="application/json")

    async def segments(self, request: web.Request) -> web.StreamResponse:
        shard = _integer(request, "shard") if "shard" in request.query else None
        return await _stream(request, self._admin.segments(request.query.get("topic"), shard))

    async def locate(self, request: web.Request) -> web.StreamResponse:
        topic = request.query.get("topic")
        if topic is None:
            raise InvalidRequest("topic is missing: GET /v1/locate?topic=NAME&shard=N&offset=N")
        return _answer(await self._admin.locate(topic, _integer(request, "shard"), _integer(request, "offset")))

    async def seal(self, request: web.Request) -> web.StreamResponse:
        body = _body(request, SealRequest)
        request[self.change] = Change("SealShards", TOPIC, body.topic, {"shard": body.shard})
        return _answers(await self._admin.seal(body))

    async def roll_elsewhere(self, request: web.Request) -> web.StreamResponse:
        return _answer(await self._admin.roll_elsewhere(_body(request, RollElsewhereRequest)))

    async def mounts(self, _request: web.Request) -> web.StreamResponse:
        return _answers(await self._admin.mounts.mounts())

    async def create_mount(self, request: web.Request) -> web.StreamResponse:
        body = _body(request, CreateMountRequest)
        request[self.change] = Change("CreateMount", MOUNT, body.name, body.model_dump(exclude={"name"}))
        return _answer(await self._admin.mounts.create(body), status=201)

    async def move_mount(self, request: web.Request) -> web.StreamResponse:
        body = _body(request, MoveMountRequest)
        request[self.change] = Change("MoveMount", MOUNT, body.name, {"to_node": body.node_id})
        return _answer(await self._admin.mounts.move(body))

    async def end_mount(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        body = _body(request, EndMountRequest)
        details = {"is_forced": body.force_storage_id is not None}
        if body.force_storage_id is not None:
            require(request, FOR_ADMINS)
        request[self.change] = Change("EndMount", MOUNT, body.name, details)
        await self._admin.mounts.end(body)
        return web.Response(status=204)

    async def hold_cut(self, request: web.Request) -> web.StreamResponse:
        return _answer(await self._admin.cuts.hold(_body(request, HoldRequest)))

    async def release_cut(self, request: web.Request) -> web.StreamResponse:
        return _answer(self._admin.cuts.release(_body(request, CutRequest)))

    async def confirm_cut(self, request: web.Request) -> web.StreamResponse:
        return _answer(await self._admin.cuts.confirm(_body(request, CutRequest)))

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """One JSON line per segment. The first line decides the status: what is refused is refused before it."""
        from aiohttp import web

        lines = self._admin.verify(_body(request, VerifyRequest))
        first = await anext(lines)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(_line(first))
        async for line in lines:
            await response.write(_line(line))
        await response.write_eof()
        return response


def _list_ask(request: web.Request) -> ListAsk:
    query = request.query
    offset, limit = _number(query.get("offset", "0"), "offset"), _number(query.get("limit", "50"), "limit")
    if offset < 0:
        raise InvalidRequest(f"offset={offset}: expected a number from 0 on")
    is_descending = query.get("descending", "false") == "true"
    return ListAsk(query.get("search", ""), query.get("sort", ""), is_descending, offset, limit)


def _wish(request: web.Request) -> SearchRequest:
    query = request.query
    text, encoded = query.get("key"), query.get("key_base64")
    if len(query.getall("key", ())) + len(query.getall("key_base64", ())) != 1:
        raise InvalidRequest("say which key, once: key=TEXT, or key_base64=TEXT")
    try:
        # aiohttp keeps an escape that is not UTF-8 as text, so the search would be for another key.
        parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="strict")
        key = text.encode() if text is not None else base64.b64decode(encoded or "", validate=True)
    except ValueError:
        raise InvalidRequest("the key is not UTF-8, or key_base64 is not base64") from None
    shards = frozenset(_number(one, "shard") for one in query.getall("shard", ()))
    return SearchRequest(
        topic=request.match_info["name"],
        key=key,
        shards=shards or None,
        limit=_number(query.get("limit", "100"), "limit"),
        cursor=query.get("cursor"),
        is_scan=query.get("scan", "false") == "true",
    )


def _line(model: BaseModel) -> bytes:
    return model.model_dump_json().encode() + b"\n"


def _answer(model: BaseModel, *, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(body=_line(model), status=status, content_type="application/json")


async def _stream(request: web.Request, models: AsyncIterator[BaseModel]) -> web.StreamResponse:
    """A list that may be long: made, sent and forgotten piece by piece, at the reader's pace. What is refused is
    refused before the first piece."""
    from aiohttp import web

    pieces: list[bytes] = [b"["]
    size = 0
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    async for model in models:
        if size:
            pieces.append(b",\n")
        pieces.append(model.model_dump_json().encode())
        size += len(pieces[-1])
        if size >= _SEND_BYTES:
            await _send(request, response, pieces)
            pieces, size = [], 1
    pieces.append(b"]\n")
    await _send(request, response, pieces)
    await response.write_eof()
    return response


async def _send(request: web.Request, response: web.StreamResponse, pieces: list[bytes]) -> None:
    if not response.prepared:
        await response.prepare(request)
    await response.write(b"".join(pieces))
    await asyncio.sleep(0)  # a write does not yield while the socket accepts everything


def _answers(models: Sequence[BaseModel]) -> web.Response:
    from aiohttp import web

    body = b"[" + b",\n".join(model.model_dump_json().encode() for model in models) + b"]\n"
    return web.Response(body=body, content_type="application/json")


def _body(request: web.Request, model: type[M]) -> M:
    raw = body_of(request) or b"{}"
    try:
        _refuse_too_many(from_json(raw))
        return TypeAdapter(model).validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidRequest(f"{request.method} {request.path}: {where:.200}: {first['msg']}") from None
    except ValueError as error:
        raise InvalidRequest(f"{request.method} {request.path}: the body: Invalid JSON: {error}") from None


def _refuse_too_many(body: object) -> None:
    """Valid bodies have a few dozen entries. With a million wrong ones all errors would be listed before the first is
    reported, which takes seconds of the loop and half a gigabyte. Raises InvalidRequest."""
    inner = body.values() if isinstance(body, dict) else ()
    for entries in (body, *inner):
        if isinstance(entries, dict | list) and len(entries) > _MOST_ENTRIES:
            raise InvalidRequest(f"the body names more than {_MOST_ENTRIES} things at once: ask in parts")


def _integer(request: web.Request, name: str) -> int:
    return _number(request.query.get(name, ""), name)


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"{name}={text!r}: expected an integer") from None
