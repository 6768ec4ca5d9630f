"""OffsetFetch (9): the committed offsets of a group; -1 where there is none.

Null topics (2 and later) ask for all. `require_stable` (7 and later) waits for transactions, which do not exist yet. A
repeated question is answered once. When the groups of one request (8 and later) exceed the size of one answer, the rest
get error 14, and clients ask again for those alone.
Versions: an error of the group is at the top level from 2, in each partition before; leader epoch from 5, flexible
from 6, several groups at once from 8, members of the consumer protocol with their epoch from 9 (25, 113).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from stratalog.kafka.messages import EncodedBody
from stratalog.kafka.offset_fetch import OffsetFetchEncoder
from stratalog.model.groups.group import NO_OFFSET, CommittedOffset, GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import FetchedOffset, FetchedOffsets, TopicShard
from stratalog_node.serve.connections.client_rights import ClientRights
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices, in_slices

_ERROR_ON_TOP_SINCE = 2
_MAX_BYTES = 16 << 20
"""No further group begins in an answer of this size."""
_NOTHING = CommittedOffset(NO_OFFSET, -1, "", -1)


async def handle(context: RequestContext, request: Any) -> EncodedBody:
    encoder = OffsetFetchEncoder(context.header.api_version)
    asked = request.groups if encoder.has_groups else (request,)
    groups = await off_loop(sum(1 + len(group.topics or ()) for group in asked), lambda: _merged(asked))
    out = bytearray(encoder.head(len(groups)))
    for group_id, (wanted, member_id, member_epoch) in groups.items():
        if encoder.has_groups:
            out += encoder.group_head(group_id)
        denied: Collection[str] = ()
        if not context.rights.may_group(Operation.DESCRIBE, group_id):
            fetched = FetchedOffsets(GroupError.GROUP_AUTHORIZATION_FAILED)
        elif len(out) < _MAX_BYTES:
            if wanted is not None:
                names = dict.fromkeys(place.topic for place in wanted)
                denied = await context.rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, names)
            allowed = [place for place in wanted if place.topic not in denied] if wanted and denied else wanted
            fetched = await context.services.groups.fetch_offsets(group_id, allowed, member_id, member_epoch)
            if not context.rights.may_group(Operation.DESCRIBE, group_id):  # it waited until the group was read
                fetched = FetchedOffsets(GroupError.GROUP_AUTHORIZATION_FAILED)
        else:
            fetched = FetchedOffsets(GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        offsets: Sequence[FetchedOffset] = fetched.offsets
        if fetched.error is not GroupError.NONE:
            if context.header.api_version < _ERROR_ON_TOP_SINCE:
                offsets = [FetchedOffset(place.topic, place.shard, None) for place in wanted or ()]
        elif denied:
            unseen = (FetchedOffset(place.topic, place.shard, None) for place in wanted or () if place.topic in denied)
            offsets = [*offsets, *unseen]
        elif wanted is None and context.rights.is_limited:
            offsets = await _described(context.rights, offsets)
        await _put_topics(out, encoder, offsets, fetched.error, denied)
        out += encoder.error(fetched.error)
        if encoder.has_groups:
            out += encoder.tail
            await asyncio.sleep(0)
    out += encoder.tail
    return EncodedBody(bytes(out))


def _merged(asked: Sequence[Any]) -> dict[str, tuple[list[TopicShard] | None, str | None, int]]:
    """Each group with its requested places, without repetitions (None asks for all), and the member that asks, if one
    does."""
    merged: dict[str, dict[TopicShard, None] | None] = {}
    members: dict[str, tuple[str | None, int]] = {}
    for group in asked:
        places = merged.setdefault(group.group_id, {})
        members[group.group_id] = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
        if group.topics is None:
            merged[group.group_id] = None
        elif places is not None:
            places.update(
                (TopicShard(topic.name, shard), None) for topic in group.topics for shard in topic.partition_indexes
            )
    return {
        group_id: (None if places is None else list(places), *members[group_id]) for group_id, places in merged.items()
    }


async def _described(rights: ClientRights, offsets: Sequence[FetchedOffset]) -> list[FetchedOffset]:
    """Those of topics that the client may describe."""
    found: list[FetchedOffset] = []
    slices = Slices()
    for one in offsets:
        if rights.can(Operation.DESCRIBE, ResourceType.TOPIC, one.topic):
            found.append(one)
        await slices.did()
    return found


async def _put_topics(
    out: bytearray,
    encoder: OffsetFetchEncoder,
    offsets: Sequence[FetchedOffset],
    group_error: GroupError,
    denied: Collection[str],
) -> None:
    by_topic: dict[str, list[FetchedOffset]] = {}
    async for some in in_slices(offsets):
        for found in some:
            by_topic.setdefault(found.topic, []).append(found)
    out += encoder.topics_head(len(by_topic))
    slices = Slices()
    for topic, partitions in by_topic.items():
        is_denied = topic in denied and group_error is GroupError.NONE
        error = GroupError.TOPIC_AUTHORIZATION_FAILED if is_denied else group_error
        out += encoder.topic_head(topic, len(partitions))
        async for some in in_slices(partitions):
            for _, shard, committed in some:
                out += encoder.partition(shard, committed or _NOTHING, error)
            await slices.did(len(some))
        out += encoder.tail


_NEEDS = (
    Need(Operation.DESCRIBE, ResourceType.GROUP, "30 for the group"),
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "29 for its partitions; not listed where all are asked for"),
)

API = Api(9, "OffsetFetch", 1, 9, handle, needs=_NEEDS)
