"""Consumer groups with their lag, and the clients that are connected. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from stratalog.admin_api.wording import human_duration
from stratalog.machines.consumer_group_events import ConsumerGroupStatus
from stratalog.machines.group_events import GroupStatus
from stratalog.model.counting import counted
from stratalog_node.admin.pages.shell import Markup, document, joined, link, note, table, text
from stratalog_node.measures.groups import ShardLag
from stratalog_node.serve.server import ClientView

GROUPS_SHOWN: Final = 200
SHARDS_SHOWN: Final = 50
CLIENTS_SHOWN: Final = 500


def groups_page(groups: Sequence[GroupStatus | ConsumerGroupStatus], lags: Sequence[ShardLag], count: int) -> str:
    by_group: defaultdict[str, list[ShardLag]] = defaultdict(list)
    for lag in lags:
        by_group[lag.group].append(lag)
    found = [_group(one, by_group[one.group_id]) for one in groups]
    body = joined(
        Markup("<h1>Consumer groups</h1>"),
        note("Those that this node coordinates; in a cluster each node has its own."),
        *(found or [note("None yet: a consumer with a group.id makes one.")]),
        note(f"and {count - len(groups):,} more: stratalog groups list") if count > len(groups) else Markup(""),
    )
    return document("Consumer groups", body, here="/groups")


def _group(group: GroupStatus | ConsumerGroupStatus, lags: Sequence[ShardLag]) -> Markup:
    total = sum(lag.records for lag in lags)
    uncommitted = sum(lag.committed is None for lag in lags)
    members = Counter(f"{one.client_id} at {one.client_host.lstrip('/')}" for one in group.members)
    who = ", ".join(f"{words} ({number})" if number > 1 else words for words, number in members.items())
    worst = sorted(lags, key=lambda lag: (-lag.records, lag.topic, lag.shard))
    rows = [
        (
            link(("topics", lag.topic), lag.topic),
            link(("topics", lag.topic, lag.shard), lag.shard),
            text("-" if lag.committed is None else f"{lag.committed:,}"),
            text(f"{lag.records:,}"),
            link(("topics", lag.topic, lag.shard, "records"), "look", offset=lag.position),
        )
        for lag in worst[:SHARDS_SHOWN]
    ]
    more = len(lags) - len(rows)
    return joined(
        Markup(f'<h2>{text(group.group_id)} <span class="badge {"ok" if group.members else "off"}">'),
        Markup(f"{text(group.state.value)}</span></h2>"),
        note(f"{counted(total, 'record')} behind; {counted(len(group.members), 'member')}{': ' + who if who else ''}"),
        note(f"{counted(uncommitted, 'shard')} without a committed offset, counted from the start of the log")
        if uncommitted
        else Markup(""),
        table(("topic", "#shard", "#committed", "#lag", "records"), rows)
        if rows
        else note("Nothing committed, and no shard is read."),
        note(f"and {counted(more, 'shard')} with less lag: stratalog groups describe {group.group_id}")
        if more
        else Markup(""),
    )


def clients_page(clients: Sequence[ClientView]) -> str:
    rows = [
        (
            text(one.client_id or "-"),
            text(one.peer),
            text(one.listener),
            text("now" if one.idle_ms < 1_000 else f"{human_duration(one.idle_ms // 1_000)} ago"),
        )
        for one in sorted(clients, key=lambda one: (one.client_id or "", one.peer))[:CLIENTS_SHOWN]
    ]
    more = len(clients) - len(rows)
    names = Counter(one.client_id or "-" for one in clients)
    most = ", ".join(f"{name} ({number})" for name, number in names.most_common(8))
    body = joined(
        Markup("<h1>Clients</h1>"),
        note(f"{counted(len(clients), 'Kafka connection')} to this node{': ' + most if most else ''}"),
        table(("client id", "address", "~listener", "last request"), rows) if rows else note("No client is connected."),
        note(f"and {more:,} more") if more else Markup(""),
    )
    return document("Clients", body, here="/clients")
