"""Records of a topic: the newest, the oldest, from an offset or a time on, or those of a key.

The leader of a shard is asked, and another replica that lives where it has none; what is sealed is read there from
whichever tier has it. Each node reads a bounded piece.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from stratalog.admin_api.find import FindAnswer, FoundRecord, bytes_of
from stratalog.admin_api.node_views import Bytes, RecordPage, RecordStart, ShownRange, ShownRecord, cut_bytes
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError
from stratalog.model.views.cluster_lists import ListAsk, ShardLine
from stratalog.ui.gather import Failure, Gatherer
from stratalog.ui.lists import address, number, place
from stratalog.ui.node_addresses import is_plain_url
from stratalog.ui.page import Page, Query
from stratalog.ui.values import Shown, show

SHARDS_TOGETHER: Final = 16
_EACH_OF_SEVERAL: Final = 25
_LIMITS: Final = (10, 25, 50, 100, 200)
_FIND_S: Final = 22.0
_LONGEST_KEY: Final = 2_000
_VALUE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class RecordRow:
    shard: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    more_headers: int


@dataclass(frozen=True, slots=True)
class Selection:
    shard: int | None
    start: str
    """A `RecordStart`, or `key`."""
    at: str
    limit: int
    key: str
    is_base64: bool
    is_scan: bool
    cursor: str


def read_selection(query: Query) -> Selection:
    """Raises InvalidRequest."""
    start = query.get("from", RecordStart.NEWEST.value)
    if start not in (*RecordStart, "key"):
        raise InvalidRequest(f"from={start[:40]!r}: expected one of {', '.join(RecordStart)}, key")
    shard = query.get("shard", "").strip()
    limit = number(query.get("limit", "50"), "limit", _LIMITS[-1])
    key = query.get("key", "")
    if len(key) > _LONGEST_KEY:
        raise InvalidRequest(f"a key of {len(key)} characters is too long for a page: use `stratalog find`")
    return Selection(
        None if not shard else number(shard, "shard", 2**31 - 1),
        start,
        query.get("at", "").strip()[:40],
        max(1, limit),
        key,
        query.get("keyas", "") == "base64",
        query.get("scan", "") == "true",
        query.get("cursor", "")[:4_000],
    )


async def records_page(gatherer: Gatherer, name: str, query: Query) -> Page:
    selection = read_selection(query)
    path = place("topics", name, "records")
    first = 0 if selection.shard is None else selection.shard
    asked = ListAsk(offset=first, limit=SHARDS_TOGETHER if selection.shard is None else 1)
    page = await gatherer.meta(lambda views: views.shard_page(name, asked))
    if not page.items:
        raise NotFound(f"topic {name} has no shard {first}; it has shards 0 to {page.total - 1}")
    is_ready = selection.start not in ("key", "offset", "time") or bool(
        selection.key if selection.start == "key" else selection.at
    )
    found = _Found([], [], [], None)
    if selection.start == "key" and is_ready:
        found = await _of_key(gatherer, name, selection)
    elif is_ready:
        found = await _from(gatherer, name, selection, page.items)
    data = {
        "topic": page.topic,
        "selection": selection,
        "records": found.rows,
        "shown": found.shown,
        "not_asked": found.failures,
        "shards": page.total,
        "shards_shown": len(page.items) if selection.start != "key" else page.total,
    }
    extra = {
        "path": path,
        "limits": _LIMITS,
        "is_ready": is_ready,
        "older": _older(path, selection, found),
        "newer": _newer(path, selection, found),
        "more": found.more,
    }
    trail = (("/topics", "Topics"), (place("topics", name), name))
    return Page("records.html", "Records", "/topics", data, extra, trail, is_live=False)


@dataclass(frozen=True, slots=True)
class _Found:
    rows: list[RecordRow]
    shown: list[ShownRange]
    failures: list[Failure]
    more: str | None
    """The address of what follows, in a search for a key."""


# From a place on ------------------------------------------------------------------------------------------------------
async def _from(gatherer: Gatherer, topic: str, selection: Selection, lines: Sequence[ShardLine]) -> _Found:
    at = 0
    if selection.start == RecordStart.OFFSET:
        at = number(selection.at.replace(",", ""), "offset")
    elif selection.start == RecordStart.TIME:
        at = time_ms(selection.at)
    limit = selection.limit if len(lines) == 1 else min(selection.limit, _EACH_OF_SEVERAL)
    query = {"topic": topic, "from": selection.start, "at": at, "limit": limit}
    rows: list[RecordRow] = []
    shown: list[ShownRange] = []
    failures: list[Failure] = []
    for line in lines:
        answer = await _read_shard(gatherer, line, "/v1/records?" + urlencode({**query, "shard": line.shard}))
        if isinstance(answer, Failure):
            failures.append(answer)
            continue
        rows += map(_row, answer.records)
        shown += answer.shards
    if selection.start == RecordStart.NEWEST:
        rows.sort(key=lambda row: (-row.timestamp_ms, row.shard, -row.offset))
        if len(lines) == 1:
            rows.sort(key=lambda row: -row.offset)
    elif len(lines) > 1:
        rows.sort(key=lambda row: (row.timestamp_ms, row.shard, row.offset))
    return _Found(rows[: selection.limit], shown, failures, None)


async def _read_shard(gatherer: Gatherer, line: ShardLine, path: str) -> RecordPage | Failure:
    candidates = [line.leader] if line.leader is not None else list(line.isr)
    failure = Failure(-1, f"shard {line.shard} has no leader, and no replica of it is alive")
    for node_id in candidates[:3]:
        why_not = await why_not_shown(gatherer, node_id)
        if why_not is not None:
            return Failure(node_id, why_not)
        try:
            return await gatherer.of_node(node_id, path, RecordPage, 20.0)
        except StratalogError as error:
            failure = Failure(node_id, str(error))
    return failure


async def why_not_shown(gatherer: Gatherer, node_id: int) -> str | None:
    """Why this port shows no records of a node (`host.why_no_records`)."""
    host = gatherer.host
    if host.why_no_records is None or node_id in host.own_nodes():
        return None
    url = (await gatherer.urls()).get(node_id, "")
    return f"{host.why_no_records}{f': {url}' if is_plain_url(url) else ''}"


def _row(record: ShownRecord) -> RecordRow:
    headers = tuple((header.name, show(header.value)) for header in record.headers)
    return RecordRow(
        record.shard,
        record.offset,
        record.timestamp_ms,
        show(record.key),
        show(record.value),
        headers,
        record.more_headers,
    )


def time_ms(text: str) -> int:
    """`2026-11-28`, `2026-11-28 14:30`, with a zone or in UTC, or milliseconds since 1970. Raises InvalidRequest."""
    if text.isascii() and text.isdigit():
        return number(text, "time")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"time={text!r}: expected YYYY-MM-DD HH:MM:SS (UTC), with a zone if it is another one, or ms since 1970"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1_000))


def _older(path: str, selection: Selection, found: _Found) -> str:
    """The page before; of one shard alone."""
    if selection.shard is None or selection.start == "key" or len(found.shown) != 1:
        return ""
    (one,) = found.shown
    first = min((row.offset for row in found.rows), default=one.from_offset)
    if first <= one.log_start_offset:
        return ""
    before = max(one.log_start_offset, first - selection.limit)
    return address(path, shard=str(selection.shard), **{"from": "offset"}, at=str(before), limit=selection.limit)


def _newer(path: str, selection: Selection, found: _Found) -> str:
    if selection.shard is None or selection.start == "key" or len(found.shown) != 1:
        return ""
    (one,) = found.shown
    if one.next_offset >= one.high_watermark:
        return ""
    return address(
        path, shard=str(selection.shard), **{"from": "offset"}, at=str(one.next_offset), limit=selection.limit
    )


# Of a key -------------------------------------------------------------------------------------------------------------
async def _of_key(gatherer: Gatherer, topic: str, selection: Selection) -> _Found:
    try:
        key = base64.b64decode(selection.key, validate=True) if selection.is_base64 else selection.key.encode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("the key is not base64") from None
    query = {"key_base64": base64.b64encode(key).decode(), "limit": selection.limit}
    query |= {"shard": selection.shard} if selection.shard is not None else {}
    query |= {"scan": "true"} if selection.is_scan else {}
    cursors = _cursors(selection.cursor)
    failures: list[Failure] = []
    paths: dict[int, str] = {}
    for node_id in await gatherer.urls():
        if cursors and node_id not in cursors:
            continue
        why_not = await why_not_shown(gatherer, node_id)
        if why_not is not None:
            failures.append(Failure(node_id, why_not))
            continue
        more = {"cursor": cursors[node_id]} if cursors else {}
        paths[node_id] = f"/v1{place('topics', topic, 'find')}?{urlencode({**query, **more})}"
    answers, others = await gatherer.of_nodes(paths, FindAnswer, _FIND_S)
    rows = [_found_row(record, key) for answer in answers for record in answer.records]
    rows.sort(key=lambda row: (row.timestamp_ms, row.shard, row.offset))
    for answer in answers:
        failures += [
            Failure(
                answer.node_id,
                f"shard {one.shard}, offsets {one.from_offset:,} to {one.to_offset:,} were not searched: {one.why}"
                + (" (tick “read all data” to read them whole)" if one.is_unindexed else ""),
            )
            for one in answer.not_searched[:10]
        ]
    left = ",".join(f"{answer.node_id}~{answer.cursor}" for answer in answers if answer.cursor is not None)
    more_address = None
    if left:
        kept = {
            "key": selection.key,
            "keyas": "base64" if selection.is_base64 else "",
            "scan": "true" if selection.is_scan else "",
        }
        shard = "" if selection.shard is None else str(selection.shard)
        path = place("topics", topic, "records")
        more_address = address(path, **{"from": "key"}, shard=shard, limit=selection.limit, cursor=left, **kept)
    return _Found(rows, [], failures + others, more_address)


def _cursors(text: str) -> dict[int, str]:
    """Where the search continues, by node."""
    found: dict[int, str] = {}
    for one in text.split(",") if text else ():
        node, _, cursor = one.partition("~")
        found[number(node, "cursor", 2**31 - 1)] = cursor
    return found


def _found_row(record: FoundRecord, key: bytes) -> RecordRow:
    value = bytes_of(record.value, record.value_base64)
    shown = show(cut_bytes(value, _VALUE_BYTES))
    if record.is_left_out:
        shown = show(Bytes(data="", size=record.size_bytes))
    headers = tuple(
        (header.name, show(cut_bytes(bytes_of(header.value, header.value_base64), 4 << 10)))
        for header in record.headers[:50]
    )
    timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
    more = max(0, len(record.headers) - 50)
    return RecordRow(record.shard, record.offset, timestamp_ms, show(cut_bytes(key, 4 << 10)), shown, headers, more)
