"""DescribeLogDirs (35): the local bytes of each shard on this node, and how full its disk is.

A node has a directory, and perhaps further ones with sealed copies; one that cannot be used is in the answer with an
error. Sizes count local copies only; freed segments are in the object store. Null topics ask for all
shards; a shard that has neither a replica nor data here is left out. Lag is 0: the metrics of the leader show how far a
follower is behind.
Versions: flexible from 2, top-level error from 3, disk sizes from 4.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.ids import ShardKey
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.flush.shard_lookup import DiskUsage, ShardLookup
from stratalog_node.slices import Slices


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    disk = services.disk.usage()
    schema = messages.response_type(35, context.header.api_version)
    if not context.rights.may_cluster(Operation.DESCRIBE):
        return messages.build(schema, throttle_time=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=())
    topic_type = messages.element_type(messages.element_type(schema, "results"), "topics")
    partition_type = messages.element_type(topic_type, "partitions")
    topics: dict[str, list[Any]] = {}
    """By directory; the first one's key is empty."""
    slices = Slices()
    for name, shards in sorted((await _asked(services, request.topics, slices)).items()):
        partitions: dict[str, list[Any]] = {}
        for shard in shards:
            moved = shard.moved_bytes()
            for place, size_bytes in {"": shard.local_size_bytes() - sum(moved.values()), **moved}.items():
                partitions.setdefault(place, []).append(
                    messages.build(
                        partition_type,
                        partition_index=shard.key.shard,
                        partition_size=size_bytes,
                        offset_lag=0,
                        is_future_key=False,
                    )
                )
            await slices.did()
        for place, some in partitions.items():
            topics.setdefault(place, []).append(messages.build(topic_type, name=name, partitions=some))
    results = [_result(disk, topics.get("", []))]
    for one in await asyncio.to_thread(services.disk.further):
        error = ErrorCode.NONE if one.is_usable else ErrorCode.KAFKA_STORAGE_ERROR
        results.append(_result(one.disk, topics.get(one.disk.path, []), error))
    return messages.build(schema, throttle_time=0, error_code=0, results=results)


def _result(disk: DiskUsage, topics: list[Any], error: int = 0) -> dict[str, Any]:
    return {
        "error_code": error,
        "log_dir": disk.path,
        "topics": topics,
        "total_bytes": disk.total_bytes,
        "usable_bytes": disk.usable_bytes,
    }


async def _asked(services: NodeServices, topics: Any, slices: Slices) -> dict[str, list[ShardLookup]]:
    """The shards asked for that are here, by topic, each once."""
    found: dict[str, list[ShardLookup]] = defaultdict(list)
    if topics is None:
        for view in services.shards.all():
            if _is_here(services, view):
                found[view.topic.name].append(view)
        for shards in found.values():
            shards.sort(key=lambda shard: shard.key.shard)
        return found
    wanted = await off_loop(sum(1 + len(asked.partitions) for asked in topics), lambda: _merged(topics))
    for name, partitions in wanted.items():
        await slices.did()
        topic = services.catalog.topic(name)
        if topic is None:
            continue
        for partition in partitions:
            await slices.did()
            here = services.shards.get(ShardKey(topic.topic_id, partition))
            if here is not None and _is_here(services, here):
                found[topic.name].append(here)
    return found


def _is_here(services: NodeServices, shard: ShardLookup) -> bool:
    active = services.catalog.active_segment(shard.key)
    return (active is not None and services.node_id in active.replicas) or shard.local_size_bytes() > 0


def _merged(topics: Sequence[Any]) -> dict[str, list[int]]:
    merged: dict[str, set[int]] = defaultdict(set)
    for asked in topics:
        merged[asked.topic].update(asked.partitions)
    return {name: sorted(partitions) for name, partitions in merged.items()}


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.CLUSTER, "31 from version 3 on, before it an empty list"),)

API = Api(35, "DescribeLogDirs", 1, 4, handle, needs=_NEEDS)
