"""What the meta service knows of a cluster, asked over HTTP.

Cost: one snapshot of the metadata, from which it follows which shards forbid to stop a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from stratalog.machines.shard_troubles import Trouble, TroubleKind, troubles
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.metadata import Node
from stratalog.model.retirement_status import RetirementStatus, words_of
from stratalog.model.topic import Topic
from stratalog_operator.plan.observed import SeenMeta

_UNWELL = (TroubleKind.NO_LEADER, TroubleKind.BELOW_MIN_IN_SYNC)
MIN_IN_SYNC = "min.insync.replicas"


class HttpMetaSight:
    def __init__(self, client: HttpMetaClient) -> None:
        """`client` is closed by who made it."""
        self._client = client

    async def look(self) -> SeenMeta:
        """Raises: StratalogError where it does not answer."""
        client = self._client
        cluster_id = await client.read_cluster_id()
        retirements, mounts = await client.retirements(), await client.mounts()
        snapshot = await client.snapshot()
        # Nothing here depends on the time: seals that are late do not forbid to stop a node.
        found = list(troubles(snapshot, 0))
        return SeenMeta(
            cluster_id,
            snapshot.nodes,
            tuple(_records(snapshot.nodes, retirements)),
            mounts,
            unwell(found, snapshot.topics),
            behind(found),
        )


def _records(nodes: Iterable[Node], told: Iterable[RetirementStatus]) -> Iterator[RetirementStatus]:
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
            yield replace(known, is_alive=node.is_alive, retirement=record)


def unwell(found: Iterable[Trouble], topics: Iterable[Topic]) -> tuple[str, ...]:
    """Shards that would lose something by one node less. A topic that asks for more in sync than it has replicas never
    has enough: it holds up nobody."""
    hopeless = {topic.name for topic in topics if int(topic.settings.get(MIN_IN_SYNC, "1")) > topic.replication_factor}
    return tuple(
        f"shard {one.segment.shard} of {one.topic}: {one.words}"
        for one in found
        if one.kind in _UNWELL and not (one.kind is TroubleKind.BELOW_MIN_IN_SYNC and one.topic in hopeless)
    )


def behind(found: Iterable[Trouble]) -> frozenset[int]:
    """Who is to be in sync somewhere and is not."""
    return frozenset(node for one in found if one.kind is TroubleKind.NOT_IN_SYNC for node in one.nodes)
