"""CreatePartitions (37): more shards for a topic; the number only grows.

Keys move to other partitions from then on, as in Kafka. The meta service decides the placement: assignments by the
client are refused (39), internal topics (44). Versions: no difference but the flexible encoding from 2 on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.copies.internal_topics import refuse_internal
from stratalog.model.commands.table_commands import AddShards
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, LimitExceeded, StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.model.topic import Topic
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.mutations import count_mutations
from stratalog_node.serve.api.topic_answers import TopicRefused, answer_to, named_twice, no_right, wait_ms
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each
from stratalog_node.slices import Slices


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    distinct, doubles = await first_of_each(request.topics, lambda topic: topic.name)
    denied = await context.rights.denied(Operation.ALTER, ResourceType.TOPIC, distinct)
    await learn_topics(services, [name for name in distinct if name not in denied])
    grown: list[Topic] = []
    results = []
    slices = Slices()
    for asked in distinct.values():
        await slices.did()
        code, message = ErrorCode.NONE, None
        try:
            if asked.name in doubles:
                raise named_twice(asked.name)
            if asked.name in denied or not context.rights.may_topic(Operation.ALTER, asked.name):
                raise no_right(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            topic = _check(services, asked)
            count_mutations(context, asked.count - topic.shard_count)
            if not request.validate_only:
                grown.append(await _grow(services, topic, asked.count))
        except StratalogError as error:
            code, message = answer_to(error)
        results.append({"name": asked.name, "error_code": code, "error_message": message})
    await catalog_shows_each(grown, partial(_is_shown, services), wait_ms(request.timeout))
    schema = messages.response_type(37, context.header.api_version)
    return await encoded(schema, len(results), lambda: {"results": results})


def _check(services: NodeServices, asked: Any) -> Topic:
    topic = services.catalog.topic(asked.name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {asked.name!r} does not exist")
    if asked.assignments:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "segments are placed by the meta service: name a count, not nodes"
        )
    refuse_internal(topic, "given more shards")
    if asked.count <= topic.shard_count:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {counted(topic.shard_count, 'partition')} and cannot change to {asked.count}: "
            "the number only grows",
        )
    return topic


async def _grow(services: NodeServices, topic: Topic, count: int) -> Topic:
    try:
        return await services.meta.perform(AddShards(topic.topic_id, count))
    except (InvalidRequest, LimitExceeded) as error:
        raise TopicRefused(ErrorCode.INVALID_PARTITIONS, str(error)) from error


def _is_shown(services: NodeServices, grown: Topic) -> bool:
    known = services.catalog.topic_by_id(grown.topic_id)
    return known is None or known.shard_count >= grown.shard_count


_NEEDS = (Need(Operation.ALTER, ResourceType.TOPIC, "29 for that topic"),)

API = Api(37, "CreatePartitions", 0, 3, handle, needs=_NEEDS)
