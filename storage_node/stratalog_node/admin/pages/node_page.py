"""The node's status page, from which all others are reached: no script, no outside asset; it reloads itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from stratalog.admin_api.models import NodeStatus, TopicInfo
from stratalog.admin_api.wording import (
    following_lines,
    following_words,
    given_up_lines,
    human_bytes,
    human_duration,
    human_time,
    stopped_lines,
)
from stratalog.model.counting import counted
from stratalog_node.admin.pages.plots import levels, plot, rates
from stratalog_node.admin.pages.shell import Markup, document, link, table, text
from stratalog_node.measures.history import Sample

TOPICS_SHOWN: Final = 200


def render_status_page(status: NodeStatus, topics: Sequence[TopicInfo], samples: Sequence[Sample]) -> str:
    """`topics` are the first `TOPICS_SHOWN`."""
    badge = '<span class="badge ok">ready</span>' if status.is_ready else '<span class="badge bad">not ready</span>'
    waiting = "".join(f"<li>{escape(what)}: {escape(why)}</li>" for what, why in status.waiting_for.items())
    if status.bucket_trouble:
        waiting += f"<li>object store: {escape(status.bucket_trouble)}</li>"
    waiting += "".join(f"<li>{escape(line)}</li>" for line in stopped_lines(status))
    waiting += "".join(f"<li>{escape(line)}</li>" for line in given_up_lines(status))
    waiting += "".join(f"<li>{escape(line)}</li>" for line in following_lines(status.replication))
    waiting = f"<ul>{waiting}</ul>" if waiting else ""
    bucket = status.bucket or "none: data stays on this disk (start with --bucket URL)"
    uptime = human_duration((status.now_ms - status.started_ms) // 1000)
    body = f"""<h1>Stratalog node {status.node_id} {badge}</h1>
<div class="muted">cluster {escape(status.cluster_id)} · version {escape(status.version)} · Kafka on
{escape(status.kafka_address)} · up {uptime}, since {human_time(status.started_ms)}</div>{waiting}
<div class="cards">{_cards(status)}</div>
<div class="plots">{_plots(samples)}</div>
<h2>Topics</h2>{_topics(topics, status.topics)}
<h2>Places</h2><div class="scroll"><table>
<tr><td>data directory</td><td>{escape(status.data_dir)}</td></tr>
<tr><td>object store</td><td>{escape(bucket)}</td></tr>
<tr><td>for machines</td><td><a href="/metrics">metrics</a> · <a href="/v1/status">status</a> ·
<a href="/v1/segments">segments</a> · <a href="/readyz">readiness</a></td></tr></table></div>"""
    return document(f"Stratalog node {status.node_id}", Markup(body), here="/")


def _plots(samples: Sequence[Sample]) -> str:
    def per_second(value: float) -> str:
        return f"{human_bytes(round(value))}/s"

    return "".join(
        (
            plot("Written", rates(samples, lambda sums: sums.appended_bytes), per_second),
            plot("Read", rates(samples, lambda sums: sums.fetched_bytes), per_second),
            plot("Upload lag", levels(samples, lambda sums: sums.upload_lag_bytes), lambda v: human_bytes(round(v))),
            plot(
                "Consumer lag", levels(samples, lambda sums: sums.consumer_lag), lambda v: counted(round(v), "record")
            ),
        )
    )


def _card(name: str, value: str, note: str = "", bar_percent: int | None = None) -> str:
    bar = "" if bar_percent is None else f'<div class="bar"><i style="width:{bar_percent}%"></i></div>'
    return f'<div class="card">{escape(name)}<b>{escape(value)}</b><span class="muted">{escape(note)}</span>{bar}</div>'


def _cards(status: NodeStatus) -> str:
    segments = ", ".join(f"{count} {state}" for state, count in sorted(status.segments.items())) or "none"
    used = status.disk_total_bytes - status.disk_free_bytes
    percent = round(100 * used / status.disk_total_bytes) if status.disk_total_bytes else 0
    lag_note = f"{counted(status.upload_lag_shards, 'shard')} behind" if status.bucket else "no object store"
    return "".join(
        (
            _card("Shards", f"{status.shards:,}", f"of {counted(status.topics, 'topic')}"),
            _card("Segments", f"{sum(status.segments.values()):,}", segments),
            _card("Local tier", human_bytes(status.bytes.local), "batches on disk"),
            _card("Cold tier", human_bytes(status.bytes.cold), "batches in the object store"),
            _card("Upload lag", human_bytes(status.upload_lag_bytes), lag_note),
            *_following(status),
            _card(
                "Disk free",
                human_bytes(status.disk_free_bytes),
                f"of {human_bytes(status.disk_total_bytes)}; {percent} % used",
                percent,
            ),
            _card("Memory", human_bytes(status.resident_bytes), "resident"),
            _card("Loop blocked", counted(status.loop_blocks, "time"), "over 100 ms"),
        )
    )


def _following(status: NodeStatus) -> list[str]:
    """Nothing on a node that follows nothing."""
    told = status.replication
    if not told.segments and not told.copies_due:
        return []
    return [_card("Replication lag", human_bytes(told.lag_bytes), following_words(told))]


def _topics(topics: Sequence[TopicInfo], count: int) -> str:
    if not topics:
        return '<p class="muted">None yet. Create one: <code>stratalog topics create NAME</code></p>'
    rows = [
        (
            link(("topics", topic.name), topic.name),
            text(f"{topic.shards:,}"),
            text(f"{topic.segments:,}"),
            text(human_bytes(topic.bytes.local)),
            text(human_bytes(topic.bytes.cold)),
        )
        for topic in topics
    ]
    more = f'<p class="muted">and {count - len(topics):,} more: <code>stratalog topics list</code></p>'
    shown = table(("topic", "#shards", "#segments", "#on this disk", "#object store"), rows)
    return f"{shown}{more if count > len(topics) else ''}"
