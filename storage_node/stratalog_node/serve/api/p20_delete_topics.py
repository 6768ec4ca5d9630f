"""DeleteTopics (20): a topic vanishes from metadata at once; its files and objects go after the grace period.

A topic made again under the same name has a new id and never meets the old data. Internal topics are kept (73).
Versions: 1-5 name topics; 6 names them by name or by id (unknown id: 100) and answers both; message from 5.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import DeleteTopic
from stratalog.model.errors import Reserved, StratalogError
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog.model.topic import Topic
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.mutations import count_mutations
from stratalog_node.serve.api.topic_answers import NO_RIGHT, TopicRefused, answer_to, named_twice, wait_ms
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each
from stratalog_node.slices import Slices

_BY_ID_SINCE = 6


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    version = context.header.api_version
    if version >= _BY_ID_SINCE:
        asked, doubles = await first_of_each(request.topics, lambda topic: (topic.name, topic.topic_id))
    else:
        asked, doubles = await first_of_each(request.topic_names, lambda name: (name, None))
    names = [] if _may_delete_all(context) else [name for name, _ in asked if name is not None]
    unseen = await context.rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, names)
    await learn_topics(
        services, [topic_id if name is None else name for name, topic_id in asked if name is None or name not in unseen]
    )
    slices = Slices()
    gone: list[UUID] = []
    answers = []
    for name, topic_id in asked:
        await slices.did()
        answer = {"name": name, "topic_id": topic_id, "error_code": 0, "error_message": None}
        try:
            if (name, topic_id) in doubles:
                raise named_twice(name if name is not None else str(topic_id))
            topic = _find(context, name, topic_id, unseen)
            answer |= {"name": topic.name, "topic_id": topic.topic_id}
            count_mutations(context, topic.shard_count)
            await _delete(services, topic)
            gone.append(topic.topic_id)
        except _MayNotDelete as refusal:
            answer |= {"name": refusal.shown_name, "error_code": refusal.code, "error_message": str(refusal)}
        except StratalogError as error:
            answer["error_code"], answer["error_message"] = answer_to(error)
        answers.append(answer)
    catalog = services.catalog
    await catalog_shows_each(gone, lambda one: catalog.topic_by_id(one) is None, wait_ms(request.timeout))
    return await encoded(messages.response_type(20, version), len(answers), lambda: {"responses": answers})


def _may_delete_all(context: RequestContext) -> bool:
    return context.rights.can(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)


class _MayNotDelete(TopicRefused):
    def __init__(self, shown_name: str | None) -> None:
        super().__init__(ErrorCode.TOPIC_AUTHORIZATION_FAILED, NO_RIGHT[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
        self.shown_name = shown_name
        """None for a topic that was asked for by id, whose name the client may not know."""


def _find(context: RequestContext, name: str | None, topic_id: UUID | None, unseen: Collection[str]) -> Topic:
    """Whether a topic exists is said only to a client that may describe it; ids tell nothing. `unseen`: names that it
    may not describe."""
    services, rights = context.services, context.rights
    topic: Topic | None
    if name is not None:
        if topic_id is not None and topic_id.int:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, "name the topic by name or by id, not by both")
        if name in unseen:
            raise _MayNotDelete(name)
        topic = services.catalog.topic(name)
        if topic is None:
            raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    else:
        topic = services.catalog.topic_by_id(topic_id) if topic_id is not None else None
        if topic is None:
            raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
    if not _may_delete_all(context) and not rights.may_topic(Operation.DELETE, topic.name):
        is_known = name is not None or rights.can(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        raise _MayNotDelete(topic.name if is_known else None)
    return topic


async def _delete(services: NodeServices, topic: Topic) -> None:
    try:
        await services.meta.perform(DeleteTopic(topic.topic_id))
    except Reserved as error:
        raise TopicRefused(ErrorCode.TOPIC_DELETION_DISABLED, str(error)) from error


_NEEDS = (
    Need(Operation.DELETE, ResourceType.CLUSTER, "DELETE on the topic is enough"),
    Need(Operation.DELETE, ResourceType.TOPIC, "29 for that topic"),
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "29, whether it exists or not; by id: 29 without its name"),
)

API = Api(20, "DeleteTopics", 1, 6, handle, needs=_NEEDS)
