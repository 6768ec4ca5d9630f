"""What the meta service knows of a cluster, asked over HTTP.

Cost: two round trips. The service sums up shards and segments itself: what it answers is as large as topics, nodes and
mounts are many, whatever these hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from stratalog.machines.copies.rebalance import plan_rebalance
from stratalog.machines.plans.cluster_outline import health, sums
from stratalog.machines.plans.shard_troubles import TroubleKind
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import MountMode
from stratalog.model.quotas import QuotaLimits
from stratalog.model.retirement import Retirement, RetireStep, WaitReason
from stratalog.model.rights import Rule
from stratalog.model.views.outline import Outline
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog.model.views.rights_view import CredentialView, RightsView
from stratalog.model.views.status_page import Overview
from stratalog_operator.kube.together import together
from stratalog_operator.plan.observed import MountSums, NodeSums, SeenMeta, SeenRebalance, SeenRights, TopicSums

MadeT = TypeVar("MadeT")

_THIN = (
    TroubleKind.NO_SOURCE,
    TroubleKind.NO_COPY,
    TroubleKind.TOO_FEW_REPLICAS,
    TroubleKind.NOT_IN_SYNC,
    TroubleKind.TOO_FEW_COPIES,
)


class HttpMetaObserver:
    def __init__(self, client: HttpMetaClient) -> None:
        """`client` is closed by who made it. Kept from pass to pass, it reads rules, users and quotas once for each
        change."""
        self._client = client
        self._rights: SeenRights | None = None

    async def observe(self) -> SeenMeta:
        """Raises: StratalogError where it does not answer."""
        client = self._client
        # First, and by itself: what follows is then asked of that cluster alone.
        cluster_id = await client.read_cluster_id()
        async with together() as asked:
            telling = asked.create_task(client.retirements())
            shown = asked.create_task(self._overview())
            rights = asked.create_task(self._read_rights())
            outline = await self._outline()
        return replace(seen_meta(cluster_id, outline, telling.result(), shown.result()), rights=rights.result())

    async def observe_rebalance(self) -> SeenRebalance:
        return await asyncio.to_thread(seen_rebalance, await self._client.snapshot())

    async def _read_rights(self) -> SeenRights | None:
        """None of a service that is older than the operator."""
        known = self._rights
        try:
            # A service that did not list quotas is asked for everything: after its upgrade the version is the same.
            view = await self._client.rights(None if known is None or known.quotas is None else known.version)
        except (InvalidRequest, NotFound):
            return None
        if known is None or not view.is_unchanged:
            self._rights = known = seen_rights(view)
        return known

    async def _outline(self) -> Outline:
        """Of a service that is older than the operator all shards are read, until it was rolled: only it can allow that
        roll."""
        try:
            return await self._client.outline()
        except InvalidRequest:
            snapshot = await self._client.snapshot()
        healthy, summed = await _in_turns(health(snapshot, 1)), await _in_turns(sums(snapshot))
        return Outline("", snapshot.version, snapshot.topics, snapshot.nodes, snapshot.mounts, healthy, summed)

    async def _overview(self) -> Overview | None:
        """What nodes last told of themselves: only for people, so that nothing waits for it."""
        try:
            return await self._client.overview()
        except StratalogError:
            return None


async def _in_turns(steps: Generator[None, None, MadeT]) -> MadeT:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: MadeT = done.value
            return made
        await asyncio.sleep(0)


def seen_rebalance(snapshot: Snapshot) -> SeenRebalance:
    """Cost: as `plan_rebalance`."""
    planned = plan_rebalance(snapshot)
    newest = [shard.segments[-1] for shard in snapshot.shards if shard.segments]
    pending = sum(one.handed.is_roll_asked for one in newest)
    return SeenRebalance(tuple(move.segment.key for move in planned.moves), planned.is_even, pending)


def seen_rights(view: RightsView) -> SeenRights:
    rules: dict[str, set[Rule]] = {}
    for rule in view.rules:
        rules.setdefault(rule.principal, set()).add(rule)
    credentials: dict[str, tuple[CredentialView, ...]] = {}
    for one in view.credentials:
        credentials[one.user] = (*credentials.get(one.user, ()), one)
    of_principals = {principal: frozenset(found) for principal, found in rules.items()}
    return SeenRights(view.version, of_principals, credentials, _quotas_of_users(view))


def _quotas_of_users(view: RightsView) -> dict[str, QuotaLimits] | None:
    if view.quotas is None:
        return None
    named = {one.entity.user: one for one in view.quotas if one.entity.client_id is None}
    return {user: one.limits for user, one in named.items() if user}


def seen_meta(
    cluster_id: str, outline: Outline, retirements: Iterable[RetirementStatus], overview: Overview | None
) -> SeenMeta:
    in_place = frozenset(one.node_id for one in outline.mounts if one.mode is MountMode.VOLUME)
    thin, thin_count = _thin(overview, in_place)
    return SeenMeta(
        cluster_id,
        outline.nodes,
        tuple(records(outline.nodes, retirements)),
        outline.mounts,
        outline.health.unwell,
        outline.health.unwell_count,
        thin,
        thin_count,
        behind=frozenset(outline.health.behind),
        store_away_seconds=None if overview is None else store_away_seconds(overview),
        topics=outline.topics,
        asked_rolls={one.topic: one.count for one in outline.health.asked_rolls},
        topic_sums=topic_sums(outline),
        node_sums=node_sums(outline, disks_used(overview)),
        mount_sums=mount_sums(outline),
    )


def _thin(overview: Overview | None, in_place: Collection[int]) -> tuple[tuple[str, ...], int]:
    """What has fewer replicas or copies than it should, in words, and how much of that there is.

    `in_place`: retired nodes whose volumes are read where they are. What only those have is where it was asked to be;
    a mount that is not served is reported by itself (`volumes.unserved`)."""
    if overview is None:
        return (), 0
    found = [one for one in overview.troubles if one.kind in _THIN]
    kept = [one for one in found if one.kind == TroubleKind.NO_COPY and one.nodes and set(one.nodes) <= set(in_place)]
    words = tuple(f"shard {one.shard} of {one.topic}: {one.words}" for one in found if one not in kept)
    count = sum(one.count for one in overview.trouble_kinds if one.kind in _THIN) - len(kept)
    return words or ((f"{count:,} shards or segments",) if count else ()), count


def records(nodes: Iterable[Node], statuses: Iterable[RetirementStatus]) -> Iterator[RetirementStatus]:
    """The retirements in the nodes' records, which are authoritative. What remains comes from the leader's last check,
    which a new leader may not have made yet."""
    numbers = {one.node_id: one for one in statuses}
    for node in nodes:
        record = node.retirement
        if record is None:
            continue
        known = numbers.get(node.node_id)
        if known is None:
            words = words_of(record, 0, 0, 0, -1)
            yield RetirementStatus(node.node_id, node.is_alive, record, 0, 0, 0, -1, words)
        else:
            yield replace(known, is_alive=node.is_alive, retirement=record, words=_words(record, known))


def _words(record: Retirement, status: RetirementStatus) -> str:
    """The reported words, unless they belong to another step or reason than the record: the two are read one after the
    other."""
    if _stands(record) == _stands(status.retirement):
        return status.words
    return words_of(
        record, status.remaining_segments, status.remaining_bytes, status.bytes_per_second, status.seconds_left
    )


def _stands(record: Retirement) -> tuple[RetireStep, WaitReason | None]:
    return record.step, None if record.wait is None else record.wait.reason


HICCUP_SECONDS: Final = 5
"""An object store that took nothing for less is not said to be away."""


def topic_sums(outline: Outline) -> dict[UUID, TopicSums]:
    troubles = {one.topic: one.words for one in outline.health.topics}
    names = {topic.topic_id: topic.name for topic in outline.topics}
    return {
        one.topic_id: TopicSums(
            one.hot_bytes,
            one.cold_bytes,
            one.unsent_bytes,
            one.oldest_offset,
            troubles.get(names.get(one.topic_id, ""), ""),
        )
        for one in outline.sums.topics
    }


def node_sums(outline: Outline, used: Mapping[int, int]) -> dict[int, NodeSums]:
    return {one.node_id: NodeSums(one.segments, one.leaders, used.get(one.node_id)) for one in outline.sums.nodes}


def mount_sums(outline: Outline) -> dict[str, MountSums]:
    return {one.name: MountSums(one.segments, one.bytes, one.ranges) for one in outline.sums.mounts}


def disks_used(overview: Overview | None) -> dict[int, int]:
    """Percent of each disk, of those that have told."""
    rows = () if overview is None else overview.nodes
    return {
        row.node_id: 100 * (row.disk_total_bytes - row.disk_free_bytes) // row.disk_total_bytes
        for row in rows
        if row.disk_total_bytes > 0 and 0 <= row.disk_free_bytes <= row.disk_total_bytes
    }


def store_away_seconds(overview: Overview) -> int | None:
    """None while no node that is alive has told of an object store."""
    away = [
        row.uploads.store_away_ms // 1000 for row in overview.nodes if row.uploads is not None and row.state == "alive"
    ]
    if not away:
        return None
    longest = max(away)
    return 0 if longest < HICCUP_SECONDS else longest
