"""Topics, the shards of one, the segments of one shard."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import urlencode

from stratalog.admin_api.models import SettingInForce, ShardInfo
from stratalog.admin_api.node_views import LedShards, TopicSettingsInForce
from stratalog.model.views.cluster_lists import ShardLine
from stratalog.ui.gather import Failure, Gatherer
from stratalog.ui.lists import ListState, place
from stratalog.ui.page import Page, Query
from stratalog.ui.words import PLACE_WORDS


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard by the metadata, and what only its leader knows; None where that did not answer."""

    line: ShardLine
    high_watermark: int | None
    last_stable_offset: int | None
    local_bytes: int | None
    """On the leader's disk, what is not sealed included."""

    @property
    def records(self) -> int | None:
        return None if self.high_watermark is None else max(0, self.high_watermark - self.line.log_start_offset)


async def topics_page(gatherer: Gatherer, query: Query) -> Page:
    state = ListState.read("/topics", query)
    page = await gatherer.meta(lambda views: views.topic_page(state.ask))
    data = {"topics": page.items, "total": page.total}
    return Page("topics.html", "Topics", "/topics", data, {"list": state, "total": page.total, "thing": "topic"})


async def topic_page(gatherer: Gatherer, name: str, query: Query) -> Page:
    path = place("topics", name)
    state = ListState.read(path, query)
    page = await gatherer.meta(lambda views: views.shard_page(name, state.ask))
    rows, failures = await shard_rows(gatherer, name, page.items)
    settings = await _settings(gatherer, name)
    data = {
        "topic": page.topic,
        "shards": rows,
        "total": page.total,
        "settings": settings,
        "not_asked": failures,
    }
    extra = {"list": state, "total": page.total, "thing": "shard", "path": path}
    return Page("topic.html", name, "/topics", data, extra, (("/topics", "Topics"),))


async def shard_rows(
    gatherer: Gatherer, topic: str, lines: tuple[ShardLine, ...]
) -> tuple[list[ShardRow], list[Failure]]:
    """With what each shard's leader tells, and the leaders that gave no answer."""
    led: defaultdict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line.leader is not None:
            led[line.leader].append(line.shard)
    paths = {
        node_id: "/v1/shards?" + urlencode([("topic", topic), *(("shard", shard) for shard in shards)])
        for node_id, shards in led.items()
    }
    answers, failures = await gatherer.of_nodes(paths, LedShards)
    infos: dict[int, ShardInfo] = {one.shard: one for answer in answers for one in answer.items}
    rows = []
    for line in lines:
        one = infos.get(line.shard)
        if one is None:
            rows.append(ShardRow(line, None, None, None))
        else:
            rows.append(ShardRow(line, one.high_watermark, one.last_stable_offset, one.bytes.local))
    return rows, failures


async def _settings(gatherer: Gatherer, topic: str) -> list[SettingInForce] | None:
    """As the first node that answers has them; None: none answers."""
    for node_id in list(await gatherer.urls())[:3]:
        answers, _ = await gatherer.of_nodes(
            {node_id: "/v1/topic-settings?" + urlencode({"topic": topic})}, TopicSettingsInForce
        )
        if answers:
            return answers[0].items
    return None


async def shard_page(gatherer: Gatherer, name: str, shard: int, query: Query) -> Page:
    at = query.get("place", "")
    path = place("topics", name, "shards", shard)
    state = ListState.read(path, query, place=at)
    page = await gatherer.meta(lambda views: views.segment_page(name, shard, state.ask, at))
    (row,), failures = await shard_rows(gatherer, name, (page.shard,))
    data = {
        "topic": page.topic,
        "shard": row,
        "tiers": page.tiers,
        "segments": page.items,
        "total": page.total,
        "stored": at,
        "not_asked": failures,
    }
    extra = {"list": state, "total": page.total, "thing": "segment", "path": path, "place_words": PLACE_WORDS}
    trail = (("/topics", "Topics"), (place("topics", name), name))
    return Page("shard.html", f"Shard {shard}", "/topics", data, extra, trail)
