"""Topics, the shards of one, the segments of one shard with where they are stored, and some records of it.

Pure: made of the admin API's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.admin_api.models import SegmentInfo, Tier, TopicDetail, TopicInfo
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.formats.records import Record
from stratalog.model.counting import counted
from stratalog_node.admin.pages.shell import Markup, document, joined, link, note, table, text

SEGMENTS_SHOWN: Final = 200
_WHERE: Final = {
    Tier.LOCAL: "disk",
    Tier.COLD: "bucket",
    Tier.BOTH: "disk, bucket",
    Tier.ELSEWHERE: "other nodes",
    Tier.NONE: "nowhere",
}
_LONGEST_VALUE: Final = 400


def topics_page(topics: Sequence[TopicInfo], count: int) -> str:
    rows = [
        (
            link(("topics", one.name), one.name),
            text(f"{one.shards:,}"),
            text(f"{one.segments:,}"),
            text(human_bytes(one.bytes.local)),
            text(human_bytes(one.bytes.cold)),
            text(one.replication_factor),
        )
        for one in topics
    ]
    body = table(("topic", "#shards", "#segments", "#on this disk", "#object store", "~#replicas"), rows)
    more = note(f"and {count - len(topics):,} more: stratalog topics list") if count > len(topics) else Markup("")
    empty = note("None yet. Create one: stratalog topics create NAME")
    return document("Topics", joined(Markup("<h1>Topics</h1>"), body if topics else empty, more), here="/topics")


def topic_page(told: TopicDetail) -> str:
    topic = told.topic
    rows = [
        (
            link(("topics", topic.name, one.shard), one.shard),
            text("none" if one.leader is None else f"node {one.leader}"),
            text(", ".join(map(str, one.isr)) or "-"),
            text(f"{one.log_start_offset:,}"),
            text("-" if one.high_watermark is None else f"{one.high_watermark:,}"),
            text(f"{one.segments:,}"),
            text(human_bytes(one.bytes.local)),
            text(human_bytes(one.bytes.cold)),
        )
        for one in told.shards
    ]
    heads = ("shard", "leader", "~in sync", "~#start", "#end", "#segments", "#on this disk", "#object store")
    settings = [(text(one.key), text(one.value), text(one.source)) for one in told.settings if one.source != "default"]
    body = joined(
        Markup(f"<h1>{link(('topics',), 'Topics')} / {text(topic.name)}</h1>"),
        note(f"{counted(topic.shards, 'shard')}, {counted(topic.replication_factor, 'replica')} each. Where a shard "
             "ends, its leader knows: - means that another node leads it."),
        table(heads, rows),
        Markup("<h2>Settings that differ from the defaults</h2>"),
        table(("setting", "value", "from"), settings) if settings else note("none"),
    )  # fmt: skip
    return document(topic.name, body, here="/topics")


def shard_page(topic: str, shard: int, segments: Sequence[SegmentInfo], count: int) -> str:
    """`segments` are the newest, oldest first."""
    rows = [
        (
            link(("topics", topic, shard, "records"), f"{one.base_offset:,}", offset=one.base_offset),
            text(f"{one.end_offset:,}"),
            text(one.state.lower()),
            text(human_bytes(one.size_bytes)),
            text(_WHERE[one.tier]),
            text(
                ", ".join(f"{node}*" if node == one.leader else str(node) for node in one.replicas or one.local_nodes)
            ),
            text(human_time(one.max_timestamp_ms) if one.max_timestamp_ms >= 0 else "-"),
            _place(one),
        )
        for one in reversed(segments)
    ]
    heads = ("#from", "#to", "state", "#size", "stored", "~nodes", "~last record", "~place")
    left = note(f"the newest {len(segments):,} of {count:,}: stratalog segments {topic} shows all")
    body = joined(
        Markup(f"<h1>{link(('topics',), 'Topics')} / {link(('topics', topic), topic)} / shard {text(shard)}</h1>"),
        note(
            "Newest first. Stored: on the disk of this node, in the bucket, or on other nodes. * marks the leader. "
            "Offsets are links to the records."
        ),
        table(heads, rows),
        left if count > len(segments) else Markup(""),
    )
    return document(f"{topic} {shard}", body, here="/topics")


def records_page(topic: str, shard: int, offset: int, records: Sequence[Record], why_not: str | None) -> str:
    rows = [
        (
            text(f"{one.offset:,}"),
            text(human_time(one.timestamp_ms) if one.timestamp_ms >= 0 else "-"),
            _bytes(one.key),
            _bytes(one.value, "value"),
            text(", ".join(f"{name}={_shown(value)}" for name, value in one.headers) or "-"),
        )
        for one in records
    ]
    after = link(("topics", topic, shard, "records"), "next", offset=records[-1].offset + 1 if records else offset)
    body = joined(
        Markup(
            f"<h1>{link(('topics',), 'Topics')} / {link(('topics', topic), topic)} / "
            f"{link(('topics', topic, shard), f'shard {shard}')} / records</h1>"
        ),
        note(why_not if why_not is not None else f"From offset {offset:,} on."),
        table(("#offset", "~time", "key", "value", "~headers"), rows) if rows else note("No records there."),
        Markup(f"<p>{after}</p>") if rows else Markup(""),
        note(f"More: stratalog consume {topic} --shard {shard} --from-offset {offset}"),
    )
    return document(f"{topic} {shard} at {offset}", body, here="/topics", is_live=False)


def _place(segment: SegmentInfo) -> Markup:
    """The name of the file or object; all of it on pointing at it."""
    if not segment.places:
        return text("-")
    whole = segment.places[0]
    return Markup(f'<span title="{text(whole)}">{text(whole.rpartition("/")[2])}</span>')


def _bytes(value: bytes | None, kind: str = "key") -> Markup:
    if value is None:
        return Markup('<span class="muted">null</span>')
    return Markup(f'<code class="{kind}">{text(_shown(value))}</code>')


def _shown(value: bytes | None) -> str:
    if value is None:
        return "null"
    shown = value[: 4 * _LONGEST_VALUE].decode("utf-8", "backslashreplace")[:_LONGEST_VALUE]
    return shown if len(value) <= len(shown.encode()) else f"{shown}… ({human_bytes(len(value))})"
