"""Assembles the work that a node does for nodes that leave, and what it reports to the meta service for that."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.meta_api.client import MetaClient
from stratalog.model.activity import Activity
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Vitals
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.leaving.node_verifier import NodeVerifier
from stratalog_node.leaving.retirement_checks import RetirementChecks
from stratalog_node.leaving.roll_away import RollAway
from stratalog_node.replication.peer_reads import NodePeerReads
from stratalog_node.shards.assembly import LocalShards
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.tier.uploads.uploader import NodeUploader


def leaving_tasks(
    *,
    settings: ProcessSettings,
    catalog: Catalog,
    meta: MetaClient,
    local: LocalShards,
    layout: NodeLayout,
    store: ObjectStore | None,
    peers: NodePeerReads,
    cluster_id: str,
    led_shard: Callable[[ShardKey], ShardLog | None],
    steady_ms: Callable[[], int],
) -> list[Coroutine[Any, Any, None]]:
    """Endless tasks: one moves this node's segments to other nodes when a node leaves, one checks the data that leaving
    nodes held."""
    node_id = settings.node_id
    sighter = NodeVerifier(
        node_id, catalog, local.directory, layout, lambda: local.context.threads, store, peers, cluster_id
    )
    names, interval_ms = ObjectNames("", cluster_id), settings.retire_verify_interval_ms
    duty = RetirementChecks(node_id, catalog, meta, sighter, store, names, interval_ms, steady_ms)
    return [RollAway(node_id, catalog, led_shard).run(), duty.run()]


def vitals_of(
    settings: ProcessSettings,
    catalog: Catalog,
    local: LocalShards,
    store: ObjectStore | None,
    uploader: NodeUploader | None,
    activity: Activity,
) -> Vitals:
    """The disk's figures with each heartbeat, and those of uploads, which cost a check of each, only while a node
    leaves."""
    disk, away_ms = local.disk.usage(), 0
    if uploader is not None and any(node.is_leaving for node in catalog.nodes()):
        away_ms = uploader.status().uploader.store_away_ms
    free, total = max(disk.usable_bytes, 0), max(disk.total_bytes, 0)
    return Vitals(free, total, store is not None, away_ms, settings.remote_storage_enable, activity)
