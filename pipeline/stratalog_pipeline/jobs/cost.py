"""Computes what a cluster's cold data cost: bytes, objects, requests, and a price by topic and tier. Needs no Spark.

Bytes and objects are those of the bucket's listing, so objects that no manifest names (attempts, leftovers) count as
well, under their topic. Write requests are one per object; read requests are those of one full read of everything. A
bundle holds parts of many topics: each topic gets the bytes of its parts, and the bytes between parts belong to none.
Only nodes know what is on their disks, so the caller asks them (`with_local`). Prices come from a table of the caller
(`Prices`); this module knows no provider.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from stratalog.connect.http_login import HttpLogin
from stratalog.formats.bucket.object_names import BundleName, ObjectNames, SegmentObjectName
from stratalog.model.errors import InvalidRequest
from stratalog.objects import ObjectInfo, ObjectStore
from stratalog_pipeline.cold.catalog import Catalog, each
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.jobs.runners import OnProgress

BUCKET, LOCAL = "bucket", "local"
_UNNAMED: Final = "(no topic)"
_GIB: Final = 1 << 30
_LISTED_AT_ONCE: Final = 1_000
_SEGMENTS_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a month, in whatever money the table is in."""

    currency: str = "USD"
    bucket_gib_month: float = 0.0
    local_gib_month: float = 0.0
    put_per_1000: float = 0.0
    get_per_1000: float = 0.0
    copies: float = 1.0
    """How much disk a byte of a node takes that is paid for: 2 where volumes are mirrored. Replicas are counted, each
    on its own node."""


@dataclass(slots=True)
class TopicCost:
    topic: str
    tier: str = BUCKET
    bytes: int = 0
    objects: int = 0
    put_requests: int = 0
    get_requests: int = 0
    storage_price: float = 0.0
    request_price: float = 0.0

    @property
    def price(self) -> float:
        return self.storage_price + self.request_price


@dataclass(slots=True)
class Cost:
    cluster_id: str
    currency: str
    rows: list[TopicCost] = field(default_factory=list)

    @property
    def price(self) -> float:
        return sum(row.price for row in self.rows)


def parse_prices(text: str, source: str) -> Prices:
    """A JSON object with the fields of `Prices`. Raises: InvalidRequest."""
    try:
        document = json.loads(text)
        unknown = sorted({*document} - {one.name for one in fields(Prices)})
        numbers = {name: float(value) for name, value in dict(document).items() if name != "currency"}
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{source}: it is not a price table: {error}") from error
    if unknown or not isinstance(document, dict) or not document:
        known = ", ".join(one.name for one in fields(Prices))
        raise InvalidRequest(f"{source}: {unknown[0] if unknown else document!r} is not a price: known are {known}")
    prices = Prices(str(document.get("currency", "USD")), **numbers)
    if min(numbers.values(), default=0) < 0:
        raise InvalidRequest(f"{source}: a price is below zero")
    return prices


async def cost_of(
    store: ObjectStore,
    prices: Prices,
    *,
    cluster_id: str | None = None,
    meta_url: str | None = None,
    meta_login: HttpLogin | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Cost:
    """Of the bucket. Cost: its listing, and a manifest for each complete segment."""
    catalog = await Catalog.open(store, cluster_id=cluster_id, meta_url=meta_url, meta_login=meta_login)
    shards = await catalog.shards(None, with_internal=True)
    listed = []
    async for info in store.list(catalog.names.root):
        listed.append(info)
        if len(listed) % _LISTED_AT_ONCE == 0:
            on_progress("objects listed", len(listed), 0)
    parts = await _bundled(catalog, shards, on_progress)
    rows = price(add_up(catalog.names, {one.key.topic_id.hex: one.topic for one in shards}, listed, parts), prices)
    return Cost(catalog.names.cluster_id, prices.currency, rows)


def with_local(cost: Cost, local_bytes: Mapping[str, int], prices: Prices) -> Cost:
    """And what topics take on the nodes' disks: bytes of all copies, by topic. No request is paid for there. Pure."""
    rows = [TopicCost(topic, LOCAL, bytes=size) for topic, size in local_bytes.items() if size]
    for one in rows:
        one.storage_price = one.bytes * prices.copies / _GIB * prices.local_gib_month
    return replace(cost, rows=[*cost.rows, *_dearest_first(rows)])


async def _bundled(
    catalog: Catalog, shards: Iterable[CommittedShard], on_progress: OnProgress
) -> dict[str, dict[str, list[int]]]:
    """Of each bundle: sizes of the committed parts in it, by topic."""
    found: dict[str, dict[str, list[int]]] = {}
    segments = [(shard.topic, segment) for shard in shards for segment in shard.segments]
    for first in range(0, len(segments), _SEGMENTS_AT_ONCE):
        some = segments[first : first + _SEGMENTS_AT_ONCE]
        for (topic, _), (placed, _) in zip(some, await each([one for _, one in some], catalog.parts_of), strict=True):
            for part in placed:
                if isinstance(catalog.names.parse(part.object_key), BundleName):
                    found.setdefault(part.object_key, {}).setdefault(topic, []).append(part.size_bytes)
        on_progress("segments looked at", first + len(some), len(segments))
        catalog.manifests.clear()  # of a million segments they would be gigabytes
    return found


def add_up(
    names: ObjectNames,
    topics: Mapping[str, str],
    listed: Iterable[ObjectInfo],
    bundled: Mapping[str, Mapping[str, list[int]]],
) -> dict[str, TopicCost]:
    """Bytes, objects and requests by topic. `topics`: name by id in hex. Pure."""
    rows: dict[str, TopicCost] = {}

    def row(topic: str) -> TopicCost:
        return rows.setdefault(topic, TopicCost(topic))

    for info in listed:
        name = names.parse(info.key)
        if isinstance(name, SegmentObjectName):
            one = row(topics.get(name.segment.topic_id.hex, f"deleted {name.segment.topic_id}"))
            one.bytes += info.size_bytes
            one.get_requests += 1
        elif isinstance(name, BundleName):
            left = info.size_bytes
            for topic, sizes in bundled.get(info.key, {}).items():
                row(topic).bytes += sum(sizes)
                row(topic).get_requests += len(sizes)
                left -= sum(sizes)
            one = row(_UNNAMED)
            one.bytes += left
        else:
            one = row(_UNNAMED)
            one.bytes += info.size_bytes
        one.objects += 1
        one.put_requests += 1
    return rows


def price(rows: Mapping[str, TopicCost], prices: Prices) -> list[TopicCost]:
    for one in rows.values():
        one.storage_price = one.bytes / _GIB * prices.bucket_gib_month
        one.request_price = (one.put_requests * prices.put_per_1000 + one.get_requests * prices.get_per_1000) / 1_000
    return _dearest_first(rows.values())


def _dearest_first(rows: Iterable[TopicCost]) -> list[TopicCost]:
    return sorted(rows, key=lambda one: (-one.price, -one.bytes, one.topic))
