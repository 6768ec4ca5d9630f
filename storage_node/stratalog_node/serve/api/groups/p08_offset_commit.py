"""OffsetCommit (8): a group's positions, answered when they are durable.

Commits of members must carry their generation (22, 25, 27, 82); generation -1 is for consumers that assign themselves,
while the group is empty. Per offset: 3 unknown topic or partition, 12 metadata too long. Versions: retention of the
client's own choice in 2-4, leader epoch from 6, instance id from 7, flexible from 8, members of the consumer protocol
with their epoch from 9 (113 when it is another; before 9 they hear 35).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import Any

from stratalog.kafka import messages
from stratalog.machines.audit.lines import MOST_DETAILS, Change, Outcome
from stratalog.model.groups.group import NO_GENERATION, GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import CommitRequest, OffsetToCommit
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need

_NO_EPOCH = -1
_MEMBER_EPOCHS_SINCE = 9


async def handle(context: RequestContext, request: Any) -> Any:
    entries = sum(1 + len(topic.partitions) for topic in request.topics)
    denied: Collection[str] = ()
    outcomes: Iterator[GroupError]
    if context.rights.may_group(Operation.READ, request.group_id):
        names = dict.fromkeys(topic.name for topic in request.topics)
        denied = await context.rights.denied(Operation.READ, ResourceType.TOPIC, names)
        outcomes = iter(await _commit(context, request, entries, denied))
    else:
        outcomes = repeat(GroupError.GROUP_AUTHORIZATION_FAILED)
    schema = messages.response_type(8, context.header.api_version)

    def answer() -> dict[str, Any]:
        topics = []
        for topic in request.topics:
            errors = repeat(GroupError.TOPIC_AUTHORIZATION_FAILED) if topic.name in denied else outcomes
            partitions = [
                {"partition_index": partition.partition_index, "error_code": next(errors)}
                for partition in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    return await encoded(schema, entries, answer)


async def _commit(context: RequestContext, request: Any, entries: int, denied: Collection[str]) -> Sequence[GroupError]:
    """The outcomes of the offsets of all topics but those that are denied."""
    wanted = await off_loop(entries, lambda: _wanted(request, denied))
    if denied and not wanted:
        return ()
    commit = CommitRequest(
        group_id=request.group_id,
        offsets=wanted,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=getattr(request, "generation_id_or_member_epoch", NO_GENERATION),
        retention_ms=_retention_ms(request),
    )
    outcomes = await context.services.groups.commit_offsets(commit)
    if commit.generation == NO_GENERATION and not commit.member_id:
        _note_reset(context, commit, outcomes)
    if context.header.api_version < _MEMBER_EPOCHS_SINCE:
        outcomes = [GroupError.UNSUPPORTED_VERSION if one is GroupError.STALE_MEMBER_EPOCH else one for one in outcomes]
    return outcomes


def _note_reset(context: RequestContext, commit: CommitRequest, outcomes: Sequence[GroupError]) -> None:
    """Offsets that no member commits: a person resets them, or a consumer that assigns itself commits, often."""
    done = [one for one, error in zip(commit.offsets, outcomes, strict=True) if error is GroupError.NONE]
    offsets = {f"{one.topic}-{one.shard}": one.offset for one in (done or commit.offsets)[:MOST_DETAILS]}
    errors = sorted({error.name for error in outcomes if error is not GroupError.NONE})
    context.services.audit.event(
        context.connection.asker,
        Change("OffsetCommit", "GROUP", commit.group_id, {"offsets": offsets, "count": len(done or commit.offsets)}),
        Outcome.DONE if done else Outcome.FAILED,
        ", ".join(errors),
    )


def _wanted(request: Any, denied: Collection[str]) -> tuple[OffsetToCommit, ...]:
    return tuple(
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", _NO_EPOCH),
            partition.committed_metadata or "",
        )
        for topic in request.topics
        if topic.name not in denied
        for partition in topic.partitions
    )


def _retention_ms(request: Any) -> int | None:
    asked = getattr(request, "retention_time", None)
    if asked is None:
        return None
    retention_ms = messages.milliseconds(asked)
    return retention_ms if retention_ms >= 0 else None


_NEEDS = (
    Need(Operation.READ, ResourceType.GROUP, "30 for each partition"),
    Need(Operation.READ, ResourceType.TOPIC, "29 for its partitions"),
)

API = Api(8, "OffsetCommit", 2, 9, handle, needs=_NEEDS)
