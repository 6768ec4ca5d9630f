"""Searches, sorts and pages the lists of the cluster UI. Pure.

Functions that read each segment are generators, so that the caller may do other work between two steps; only the
segments of shards on the page are read. Raises InvalidRequest for a column that a list cannot be sorted by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from stratalog.machines.plans.cluster_overview import LONGEST_TEXT, place_of_sealed
from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind, troubles_of
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.model.errors import InvalidRequest
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import (
    MAX_LISTED,
    ListAsk,
    SegmentLine,
    SegmentPage,
    ShardLine,
    ShardPage,
    TierLine,
    TopicLine,
    TopicPage,
    TroubleLine,
    TroublePage,
)
from stratalog.model.views.outline import TopicSums

T = TypeVar("T")
Column: TypeAlias = Callable[[T], Any]
MAX_TROUBLES_KEPT: Final = 2_000
_SEGMENTS_PER_STEP: Final = 256
PLACES: Final = ("open", "local", "both", "cold", "nowhere")


def page_of(rows: Iterable[T], ask: ListAsk, name: Column[T], columns: Mapping[str, Column[T]]) -> tuple[list[T], int]:
    """The rows of one page, and how many match. `name` is what is searched and breaks ties."""
    if not 0 < ask.limit <= MAX_LISTED:
        raise InvalidRequest(f"limit={ask.limit}: expected 1 to {MAX_LISTED}")
    if ask.sort and ask.sort not in columns:
        raise InvalidRequest(f"sort={ask.sort[:40]!r}: expected one of {', '.join(columns)}")
    wanted = ask.search.casefold()
    found = [row for row in rows if not wanted or wanted in str(name(row)).casefold()]
    if ask.sort:
        found.sort(key=name)
        found.sort(key=columns[ask.sort], reverse=ask.is_descending)
    return found[ask.offset : ask.offset + ask.limit], len(found)


# Topics ---------------------------------------------------------------------------------------------------------------
_NO_SUMS: Final = TopicSums(UUID(int=0), 0, 0, 0, 0)
TOPIC_COLUMNS: Final[Mapping[str, Column[TopicLine]]] = {
    "name": lambda one: one.name,
    "shards": lambda one: one.shards,
    "replicas": lambda one: one.replication_factor,
    "hot": lambda one: one.hot_bytes,
    "cold": lambda one: one.cold_bytes,
    "unsent": lambda one: one.unsent_bytes,
    "created": lambda one: one.created_ms,
    "trouble": lambda one: one.trouble is None,
}


def topic_page(
    topics: Iterable[Topic], sums: Iterable[TopicSums], troubles: Mapping[str, str], ask: ListAsk
) -> TopicPage:
    """`troubles`: by topic, as `cluster_outline.health` finds them. Internal topics come last."""
    summed = {one.topic_id: one for one in sums}
    lines = []
    for topic in topics:
        one = summed.get(topic.topic_id, _NO_SUMS)
        lines.append(
            TopicLine(
                topic.name,
                topic.shard_count,
                topic.replication_factor,
                topic.is_internal,
                topic.created_ms,
                one.hot_bytes,
                one.cold_bytes,
                one.unsent_bytes,
                _cut(troubles.get(topic.name)),
            )
        )
    lines.sort(key=lambda line: (line.is_internal, line.name))
    items, total = page_of(lines, ask, lambda line: line.name, TOPIC_COLUMNS)
    return TopicPage(tuple(items), total)


# Shards ---------------------------------------------------------------------------------------------------------------
SHARD_COLUMNS: Final[Mapping[str, Column[Shard]]] = {
    "shard": lambda shard: shard.key.shard,
    "leader": lambda shard: -1 if (led := _active(shard)) is None or led.leader is None else led.leader,
    "insync": lambda shard: 0 if (active := _active(shard)) is None else len(active.isr),
    "start": lambda shard: shard.log_start_offset,
    "segments": lambda shard: len(shard.segments),
}


def shard_page(
    topic: Topic,
    shards: Sequence[Shard],
    nodes: Iterable[Node],
    now_ms: int,
    min_in_sync: int,
    ask: ListAsk,
) -> Generator[None, None, ShardPage]:
    """Of one topic; the search is for a shard's number, or `node N` for those that a node leads."""
    look = _ShardLook(topic, nodes, now_ms, min_in_sync)
    rows = list(shards)
    if ask.search.casefold().startswith("node "):
        wanted = ask.search[5:].strip()
        rows = [one for one in rows if (active := _active(one)) is not None and str(active.leader) == wanted]
        ask = ListAsk("", ask.sort, ask.is_descending, ask.offset, ask.limit)
    found, total = page_of(rows, ask, lambda shard: shard.key.shard, SHARD_COLUMNS)
    lines = []
    for shard in found:
        lines.append((yield from look.line(shard)))
    return ShardPage(topic, tuple(lines), total)


class _ShardLook:
    def __init__(self, topic: Topic, nodes: Iterable[Node], now_ms: int, min_in_sync: int) -> None:
        self._topic = topic
        self._nodes = {node.node_id: node for node in nodes}
        self._bucket = BucketReads(tuple(self._nodes.values()))
        self._now_ms = now_ms
        self._min_in_sync = min_in_sync

    def line(self, shard: Shard) -> Generator[None, None, ShardLine]:
        hot = cold = 0
        committed = -1
        for number, segment in enumerate(shard.segments, 1):
            size = 0 if segment.seal is None else segment.seal.size_bytes
            hot += size * len(segment.local_nodes)
            cold += _cold_bytes(segment)
            committed = max(committed, segment.remote.commit_offset)
            if number % _SEGMENTS_PER_STEP == 0:
                yield
        found = troubles_of(self._topic, shard, self._nodes, self._now_ms, self._bucket, self._min_in_sync)
        words = tuple(f"{one.kind.value}: {_text(one.words)}" for one in found)[:8]
        active = _active(shard)
        leader = None if active is None or active.leader is None else self._nodes.get(active.leader)
        is_led = leader is not None and leader.is_alive and active is not None and not active.is_fenced
        return ShardLine(
            shard=shard.key.shard,
            leader=leader.node_id if leader is not None and is_led else None,
            replicas=() if active is None else active.replicas,
            isr=() if active is None else active.isr,
            epoch=shard.segments[-1].epoch if shard.segments else 0,
            log_start_offset=shard.log_start_offset,
            segments=len(shard.segments),
            hot_bytes=hot,
            cold_bytes=cold,
            committed_cold=committed,
            troubles=words,
        )


def _active(shard: Shard) -> Segment | None:
    last = shard.segments[-1] if shard.segments else None
    return last if last is not None and last.state is SegmentState.ACTIVE else None


def _cold_bytes(segment: Segment) -> int:
    remote = segment.remote
    if remote.state is RemoteState.COMPLETE:
        return remote.size_bytes or (0 if segment.seal is None else segment.seal.size_bytes)
    return sum(part.size_bytes for part in remote.parts)


# Segments -------------------------------------------------------------------------------------------------------------
SEGMENT_COLUMNS: Final[Mapping[str, Column[Segment]]] = {
    "offset": lambda segment: segment.base_offset,
    "size": lambda segment: -1 if segment.seal is None else segment.seal.size_bytes,
    "time": lambda segment: -1 if segment.seal is None else segment.seal.max_timestamp_ms,
}


def segment_page(
    topic: Topic,
    shard: Shard,
    nodes: Iterable[Node],
    now_ms: int,
    min_in_sync: int,
    ask: ListAsk,
    place: str = "",
) -> Generator[None, None, SegmentPage]:
    """Of one shard, newest first; the search is for an offset, which its segment holds. `place`: only those there."""
    if place and place not in PLACES:
        raise InvalidRequest(f"place={place[:40]!r}: expected one of {', '.join(PLACES)}")
    line = yield from _ShardLook(topic, nodes, now_ms, min_in_sync).line(shard)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    chosen: list[Segment] = []
    for number, segment in enumerate(reversed(shard.segments), 1):
        at = _place(segment)
        counts[at] += 1
        sizes[at] += 0 if segment.seal is None else segment.seal.size_bytes
        if (not place or at == place) and _holds(segment, ask.search):
            chosen.append(segment)
        if number % _SEGMENTS_PER_STEP == 0:
            yield
    plain = ListAsk("", ask.sort, ask.is_descending, ask.offset, ask.limit)
    found, total = page_of(chosen, plain, lambda segment: segment.base_offset, SEGMENT_COLUMNS)
    tiers = tuple(TierLine(one, counts[one], sizes[one]) for one in PLACES if counts[one])
    return SegmentPage(topic, line, tiers, tuple(map(_segment_line, found)), total)


def _holds(segment: Segment, search: str) -> bool:
    if not search:
        return True
    text = search.replace(",", "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidRequest(f"search={search[:40]!r}: segments are searched by an offset")
    end = segment.end_offset
    return segment.base_offset <= int(text) and (end is None or int(text) < end)


def _place(segment: Segment) -> str:
    return "open" if segment.seal is None else place_of_sealed(segment)


def _segment_line(segment: Segment) -> SegmentLine:
    seal = segment.seal
    return SegmentLine(
        epoch=segment.epoch,
        state=segment.state.value,
        base_offset=segment.base_offset,
        end_offset=-1 if segment.end_offset is None else segment.end_offset,
        size_bytes=-1 if seal is None else seal.size_bytes,
        first_timestamp_ms=-1 if seal is None else seal.first_timestamp_ms,
        max_timestamp_ms=-1 if seal is None else seal.max_timestamp_ms,
        place=_place(segment),
        commit_offset=segment.remote.commit_offset,
        remote_parts=len(segment.remote.parts),
        leader=segment.leader,
        nodes=segment.replicas if seal is None else segment.local_nodes,
    )


# Troubles -------------------------------------------------------------------------------------------------------------
TROUBLE_COLUMNS: Final[Mapping[str, Column[TroubleLine]]] = {
    "shard": lambda one: (one.topic, one.shard),
    "kind": lambda one: one.kind,
}


def kept_troubles(snapshot: Snapshot, now_ms: int, min_in_sync: int) -> Generator[None, None, tuple[Trouble, ...]]:
    """The first `MAX_TROUBLES_KEPT`, and one more if there are more."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    nodes = {node.node_id: node for node in snapshot.nodes}
    bucket = BucketReads(snapshot.nodes)
    found: list[Trouble] = []
    since = 0
    for shard in snapshot.shards:
        found += troubles_of(topics[shard.key.topic_id], shard, nodes, now_ms, bucket, min_in_sync)
        if len(found) > MAX_TROUBLES_KEPT:
            break
        since += len(shard.segments)
        if since >= _SEGMENTS_PER_STEP:
            since = 0
            yield
    return tuple(found[: MAX_TROUBLES_KEPT + 1])


def trouble_page(found: Sequence[Trouble], ask: ListAsk, kind: str = "") -> TroublePage:
    """`found` as `kept_troubles` gives them. `kind`: only those of that kind."""
    if kind and kind not in list(TroubleKind):
        raise InvalidRequest(f"kind={kind[:40]!r}: expected one of {', '.join(TroubleKind)}")
    lines = [
        TroubleLine(one.topic, one.segment.shard, one.segment.epoch, one.kind.value, one.nodes[:8], _text(one.words))
        for one in found[:MAX_TROUBLES_KEPT]
        if not kind or one.kind.value == kind
    ]
    items, total = page_of(lines, ask, lambda one: f"{one.topic}-{one.shard}", TROUBLE_COLUMNS)
    return TroublePage(tuple(items), total, len(found) > MAX_TROUBLES_KEPT)


def _text(words: str) -> str:
    return words if len(words) <= LONGEST_TEXT else words[: LONGEST_TEXT - 1] + "…"


def _cut(words: str | None) -> str | None:
    return None if words is None else _text(words)
