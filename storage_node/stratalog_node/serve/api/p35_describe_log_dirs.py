"""DescribeLogDirs (35): the local bytes of each shard on this node, and how full its disk is.

A node has one directory. Sizes count local copies only; what was freed lives in the object store. Null topics ask for
all shards; a shard that is not here is left out. Lag is 0: a shard listed here is led here.
Versions: flexible from 2, top-level error from 3, disk sizes from 4.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from stratalog.kafka import messages
from stratalog.model.ids import ShardKey
from stratalog_node.serve.context import NodeServices, RequestContext
from stratalog_node.serve.registry import Api
from stratalog_node.shards.lookup_seam import ShardLookup, ShardsLookup


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    # The node's shards implement both seams; see shards/lookup_seam.py.
    disk = cast("ShardsLookup", services.shards).disk_usage()
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": shard.key.shard,
                    "partition_size": shard.local_size_bytes(),
                    "offset_lag": 0,
                    "is_future_key": False,
                }
                for shard in shards
            ],
        }
        for name, shards in sorted(_asked(services, request.topics).items())
    ]
    result = {
        "error_code": 0,
        "log_dir": disk.path,
        "topics": topics,
        "total_bytes": disk.total_bytes,
        "usable_bytes": disk.usable_bytes,
    }
    schema = messages.response_type(35, context.header.api_version)
    return messages.build(schema, throttle_time=0, error_code=0, results=[result])


def _asked(services: NodeServices, topics: Any) -> dict[str, list[ShardLookup]]:
    found: dict[str, list[ShardLookup]] = defaultdict(list)
    if topics is None:
        for view in services.shards.all():
            found[view.topic.name].append(cast("ShardLookup", view))
        for shards in found.values():
            shards.sort(key=lambda shard: shard.key.shard)
        return found
    for asked in topics:
        topic = services.catalog.topic(asked.topic)
        if topic is None:
            continue
        for partition in sorted(set(asked.partitions)):
            if (here := services.shards.get(ShardKey(topic.topic_id, partition))) is not None:
                found[topic.name].append(cast("ShardLookup", here))
    return found


API = Api(35, "DescribeLogDirs", 1, 4, handle)
