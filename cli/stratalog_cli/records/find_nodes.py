"""Asks the nodes for the records of a key: each searches the shards that it leads, and answers page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.find import MOST_RECORDS, FindAnswer, FoundRecord, bytes_of
from stratalog.model.counting import counted
from stratalog_cli.connect.record_lines import as_json
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.records.find_cold import ColdFound

Range = tuple[int, int]


@dataclass(slots=True)
class Found:
    """Records as plain values, by shard and offset."""

    records: list[dict[str, Any]] = field(default_factory=list)
    unindexed: dict[int, list[Range]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What else was not searched, and why."""
    hot_offsets: int = 0
    is_cut: bool = False


def find_on_nodes(
    nodes: Nodes, topic: str, key: bytes, shards: Collection[int], limit: int, *, is_scan: bool
) -> tuple[Found, ColdFound]:
    """What all of them say together. Raises: NotFound for a topic, Unavailable when none answers."""
    found, cold = Found(), ColdFound("")
    asked: set[int] = set()
    searched: set[int] = set()
    elsewhere: Counter[int | None] = Counter()
    topic_shards = 0

    def ask(node: AdminClient) -> None:
        nonlocal topic_shards
        cursor, left = None, limit
        while left > 0:
            answer = node.find(topic, key, shards=shards, limit=min(left, MOST_RECORDS), cursor=cursor, is_scan=is_scan)
            if cursor is None:
                asked.add(answer.node_id)
                for one in answer.led_elsewhere:
                    elsewhere[one.node_id] = max(elsewhere[one.node_id], one.shards)
            _add_answer(answer, key, found, cold)
            topic_shards = max(topic_shards, answer.topic_shards)
            searched.update(shard for start, end in answer.searched for shard in range(start, end))
            left -= len(answer.records)
            cursor = answer.cursor
            if cursor is None:
                return
        found.is_cut = True

    nodes.each(ask)
    not_asked = {node_id: count for node_id, count in elsewhere.items() if node_id not in asked}
    for node_id, count in not_asked.items():
        led = counted(count, "shard", verb=("has", "have"))
        who = "no leader now" if node_id is None else f"node {node_id} as the leader: name it in --admin, too"
        found.faults.append(f"not searched: {led} {who}")
    left_out = len(set(shards or range(topic_shards)) - searched) - sum(not_asked.values())
    if left_out > 0 and not found.is_cut and not nodes.silent:
        found.faults.append(
            f"not searched: {counted(left_out, 'shard')} changed the leader while the nodes were asked: ask again"
        )
    if nodes.silent:
        found.faults.append("not all nodes answered, so shards that they lead were not searched")
    # A shard that got another leader meanwhile may have been searched by both.
    by_place = {(one["shard"], one["offset"]): one for one in found.records}
    found.records = [by_place[place] for place in sorted(by_place)]
    found.is_cut = found.is_cut or len(found.records) > limit
    del found.records[limit:]
    return found, cold


def _add_answer(answer: FindAnswer, key: bytes, found: Found, cold: ColdFound) -> None:
    found.records += [_plain(answer.topic, key, one) for one in answer.records]
    found.hot_offsets += answer.offsets_read
    for one in answer.not_searched:
        if one.is_unindexed:
            found.unindexed.setdefault(one.shard, []).append((one.from_offset, one.to_offset))
        else:
            where = f"shard {one.shard}, offsets {one.from_offset} to {one.to_offset}"
            found.faults.append(f"not searched: {where}: {one.why}")
    cold.segments += answer.segments
    cold.cost.pages += answer.key_index_reads
    cold.cost.reads += answer.batch_reads
    cold.cost.bytes += answer.bytes_read


def _plain(topic: str, key: bytes, one: FoundRecord) -> dict[str, Any]:
    headers = [(header.name, bytes_of(header.value, header.value_base64)) for header in one.headers]
    line = as_json(topic, one.shard, one.offset, one.timestamp_ms, key, bytes_of(one.value, one.value_base64), headers)
    return line | {"is_left_out": True, "size_bytes": one.size_bytes} if one.is_left_out else line
