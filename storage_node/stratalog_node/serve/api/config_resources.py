"""The things whose settings clients may ask for or change: topics (2) and, read-only, this node (4).

Settings of internal topics are fixed (44). How changes keep out of each other's way is in `topic_changes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.copies.internal_topics import refuse_internal
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.model.topic import Topic
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.topic_answers import TopicRefused, answer_to, named_twice, no_right
from stratalog_node.serve.connections.client_rights import ClientRights
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.registry import Need
from stratalog_node.shards.catalog.wait import catalog_shows
from stratalog_node.slices import Slices

TOPIC, BROKER = 2, 4
_SHOWN_WITHIN_MS = 1_000

Change = Callable[[Mapping[str, str], Any], Mapping[str, str]]
"""From the present settings and what the request says, the new ones. Raises InvalidRequest, TopicRefused."""


ALTERING_NEEDS = (
    Need(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "29 for that topic"),
    Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "31 for a node's settings"),
)


async def refused_settings(
    rights: ClientRights, operation: Operation, resources: Collection[tuple[int, str]]
) -> dict[tuple[int, str], ErrorCode]:
    """The resources, by type and name, to whose settings a client may not do this: 29 or 31."""
    topics = await rights.denied(operation, ResourceType.TOPIC, [name for kind, name in resources if kind == TOPIC])
    refused = {(TOPIC, name): ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in topics}
    nodes = [resource for resource in resources if resource[0] == BROKER]
    if nodes and not rights.may_cluster(operation):
        refused |= dict.fromkeys(nodes, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return refused


def topic_of(services: NodeServices, name: str) -> Topic:
    topic = services.catalog.topic(name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic


async def alter_all(context: RequestContext, request: Any, change: Change) -> list[dict[str, Any]]:
    """Apply one change to each resource of an AlterConfigs or IncrementalAlterConfigs request; each stands alone."""
    services = context.services
    named, doubles = await first_of_each(
        request.resources, lambda resource: (resource.resource_type, resource.resource_name)
    )
    denied = await refused_settings(context.rights, Operation.ALTER_CONFIGS, named)
    await learn_topics(services, [name for kind, name in named if kind == TOPIC and (kind, name) not in denied])
    answers = []
    slices = Slices()
    for key, resource in named.items():
        await slices.did(1 + len(resource.configs))
        code, message = ErrorCode.NONE, None
        try:
            if key in doubles:
                raise named_twice(resource.resource_name)
            if key in denied:
                raise no_right(denied[key])
            if key[0] == TOPIC and not context.rights.may_topic(Operation.ALTER_CONFIGS, key[1]):
                raise no_right(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            await _alter(services, resource, change, is_trial=request.validate_only)
        except StratalogError as error:
            code, message = answer_to(error)
        answers.append({"error_code": code, "error_message": message, "resource_type": key[0], "resource_name": key[1]})
    return answers


async def _alter(services: NodeServices, resource: Any, change: Change, *, is_trial: bool) -> None:
    if resource.resource_type == BROKER:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST,
            "a node's settings are fixed at its start: change them there, then restart it",
        )
    if resource.resource_type != TOPIC:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here")
    topic = topic_of(services, resource.resource_name)
    refuse_internal(topic, "altered")
    try:
        altered = await services.topic_changes.alter(
            topic.topic_id, lambda present: change(present, resource.configs), is_trial=is_trial
        )
    except InvalidRequest as error:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    if not is_trial:
        keys = {*topic.settings, *altered.settings}
        changed = [key for key in keys if topic.settings.get(key) != altered.settings.get(key)]
        await catalog_shows(lambda: _is_shown(services, altered, changed), _SHOWN_WITHIN_MS)


def _is_shown(services: NodeServices, altered: Topic, changed: list[str]) -> bool:
    """Compares by key, because a later change of another key may become visible first."""
    known = services.catalog.topic_by_id(altered.topic_id)
    return known is None or all(known.settings.get(key) == altered.settings.get(key) for key in changed)
