"""OffsetFetch (9): what a group has committed; -1 where nothing is.

Null topics (2 and later) ask for all. `require_stable` (7 and later) waits for transactions, of which there are none.
Versions: an error of the group stands at the top from 2, in each partition before; leader epoch from 5, flexible
from 6, several groups at once from 8.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.model.group import NO_OFFSET, CommittedOffset, GroupError
from stratalog_node.groups.requests import FetchedOffset, FetchedOffsets, TopicShard
from stratalog_node.serve.context import RequestContext
from stratalog_node.serve.registry import Api

_ERROR_ON_TOP_SINCE = 2
_SEVERAL_GROUPS_SINCE = 8
_NOTHING = CommittedOffset(NO_OFFSET, -1, "", -1)


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    schema = messages.response_type(9, version)
    if version >= _SEVERAL_GROUPS_SINCE:
        groups = [{"group_id": group.group_id, **await _answer(context, group)} for group in request.groups]
        return messages.build(schema, throttle_time=0, groups=groups)
    return messages.build(schema, throttle_time=0, **await _answer(context, request))


async def _answer(context: RequestContext, request: Any) -> dict[str, Any]:
    wanted = None
    if request.topics is not None:
        wanted = [TopicShard(topic.name, shard) for topic in request.topics for shard in topic.partition_indexes]
    fetched = await context.services.groups.fetch_offsets(request.group_id, wanted)
    if fetched.error is not GroupError.NONE and context.header.api_version < _ERROR_ON_TOP_SINCE:
        nowhere = tuple(FetchedOffset(place.topic, place.shard, None) for place in wanted or ())
        fetched = FetchedOffsets(fetched.error, nowhere)
    topics: list[dict[str, Any]] = []
    for topic, shard, committed in fetched.offsets:
        if not topics or topics[-1]["name"] != topic:
            topics.append({"name": topic, "partitions": []})
        found = committed or _NOTHING
        topics[-1]["partitions"].append(
            {
                "partition_index": shard,
                "committed_offset": found.offset,
                "committed_leader_epoch": found.epoch,
                "metadata": found.metadata,
                "error_code": fetched.error,
            }
        )
    return {"topics": topics, "error_code": fetched.error}


API = Api(9, "OffsetFetch", 1, 8, handle)
