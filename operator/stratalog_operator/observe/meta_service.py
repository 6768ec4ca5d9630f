"""What the meta service knows of a cluster, asked over HTTP.

Cost: two round trips, of which one brings a snapshot of the metadata; from it follows which shards forbid to stop a
node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

from stratalog.machines.recovery_rule import least_in_sync
from stratalog.machines.shard_troubles import Trouble, TroubleKind, troubles
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireStep, WaitReason
from stratalog.model.retirement_status import RetirementStatus, words_of
from stratalog.model.status_page import Overview
from stratalog.model.topic import Topic
from stratalog_operator.kube.together import together
from stratalog_operator.observe.sums import Sums, store_away_seconds, sums
from stratalog_operator.plan.observed import SeenMeta

_UNWELL = (TroubleKind.NO_LEADER, TroubleKind.BELOW_MIN_IN_SYNC)


class HttpMetaSight:
    def __init__(self, client: HttpMetaClient, min_in_sync: int) -> None:
        """`client` is closed by who made it. `min_in_sync`: the cluster's default, for topics that do not say
        otherwise."""
        self._client = client
        self._min_in_sync = min_in_sync

    async def look(self) -> SeenMeta:
        """Raises: StratalogError where it does not answer."""
        client = self._client
        # First, and by itself: what follows is then asked of that cluster alone.
        cluster_id = await client.read_cluster_id()
        async with together() as asked:
            telling = asked.create_task(client.retirements())
            shown = asked.create_task(self._overview())
            snapshot = await client.snapshot()
        retirements, overview = telling.result(), shown.result()
        # Nothing here depends on the time: seals that are late do not forbid to stop a node.
        found = list(troubles(snapshot, 0, self._min_in_sync))
        summed = await _in_turns(sums(snapshot, _felt(found, snapshot.topics, self._min_in_sync), overview))
        return SeenMeta(
            cluster_id,
            snapshot.nodes,
            tuple(records(snapshot.nodes, retirements)),
            snapshot.mounts,
            unwell(found, snapshot.topics, self._min_in_sync),
            behind=behind(found),
            store_away_seconds=None if overview is None else store_away_seconds(overview),
            topics=snapshot.topics,
            topic_sums=summed.topics,
            node_sums=summed.nodes,
            mount_sums=summed.mounts,
        )

    async def _overview(self) -> Overview | None:
        """What nodes last told of themselves: only for people, so that nothing waits for it."""
        try:
            return await self._client.overview()
        except StratalogError:
            return None


async def _in_turns(steps: Generator[None, None, Sums]) -> Sums:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Sums = done.value
            return found
        await asyncio.sleep(0)


def records(nodes: Iterable[Node], told: Iterable[RetirementStatus]) -> Iterator[RetirementStatus]:
    """The nodes' own records are the truth; what remains is told by the leader's last look, which may be none yet."""
    numbers = {one.node_id: one for one in told}
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


def _words(record: Retirement, told: RetirementStatus) -> str:
    """Those that were told, but never of another step or reason than the record's: the two are read one after the
    other."""
    if _stands(record) == _stands(told.retirement):
        return told.words
    return words_of(record, told.remaining_segments, told.remaining_bytes, told.bytes_per_second, told.seconds_left)


def _stands(record: Retirement) -> tuple[RetireStep, WaitReason | None]:
    return record.step, None if record.wait is None else record.wait.reason


def unwell(found: Iterable[Trouble], topics: Iterable[Topic], min_in_sync: int) -> tuple[str, ...]:
    """Shards that would lose something by one node less. A topic that asks for more in sync than it has replicas never
    has enough: it holds up nobody."""
    return tuple(f"shard {one.segment.shard} of {one.topic}: {one.words}" for one in _felt(found, topics, min_in_sync))


def _felt(found: Iterable[Trouble], topics: Iterable[Topic], min_in_sync: int) -> list[Trouble]:
    """Those by which a shard takes no writes, or not all."""
    hopeless = {topic.name for topic in topics if least_in_sync(topic.settings, min_in_sync) > topic.replication_factor}
    return [
        one
        for one in found
        if one.kind in _UNWELL and not (one.kind is TroubleKind.BELOW_MIN_IN_SYNC and one.topic in hopeless)
    ]


def behind(found: Iterable[Trouble]) -> frozenset[int]:
    """Who is to be in sync somewhere and is not."""
    return frozenset(node for one in found if one.kind is TroubleKind.NOT_IN_SYNC for node in one.nodes)
