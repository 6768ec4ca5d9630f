"""DescribeConfigs (32): the effective settings of a topic or of this node, and their sources (synonyms, the effective
one first).

A null or empty list of keys asks for all of them; a repeated resource is answered once. No setting here is secret, so
no value is hidden. A broker resource must be this node; an empty name means the cluster's dynamic defaults, which do
not exist.
Versions: config_source and synonyms in all we serve; type and documentation from 3; flexible from 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.settings.describe import SettingValue, describe_process, describe_topic
from stratalog_node.serve.api.config_resources import BROKER, TOPIC, refused_settings, topic_of
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.topic_answers import TopicRefused, answer_to, no_right
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(32, context.header.api_version)
    result = messages.element_type(schema, "results")
    results = []
    slices = Slices()
    asked = await off_loop(len(request.resources), lambda: _asked(request.resources))
    denied = await refused_settings(context.rights, Operation.DESCRIBE_CONFIGS, asked)
    await learn_topics(context.services, [name for kind, name in asked if kind == TOPIC and (kind, name) not in denied])
    for (kind, name), wanted in asked.items():
        code, message = ErrorCode.NONE, None
        values: Sequence[SettingValue] = ()
        try:
            if (kind, name) in denied:
                raise no_right(denied[kind, name])
            values = _values(context.services, kind, name)
        except StratalogError as error:
            code, message = answer_to(error)
        configs = [_setting_fields(one, request) for one in values if not wanted or one.key in wanted]
        results.append(
            messages.build(
                result,
                error_code=code,
                error_message=message,
                resource_type=kind,
                resource_name=name,
                configs=configs,
            )
        )
        await slices.did(1 + 4 * len(configs))
    return messages.build(schema, throttle_time=0, results=results)


def _asked(resources: Iterable[Any]) -> dict[tuple[int, str], set[str]]:
    """Each resource once, with all the keys that are asked of it; none means all of them."""
    asked: dict[tuple[int, str], set[str]] = {}
    for resource in resources:
        thing = resource.resource_type, resource.resource_name
        keys = set(resource.configuration_keys or ())
        known = asked.get(thing)
        asked[thing] = keys if known is None else known | keys if known and keys else set()
    return asked


def _values(services: NodeServices, resource_type: int, name: str) -> Sequence[SettingValue]:
    if resource_type == TOPIC:
        return describe_topic(services.settings, topic_of(services, name).settings)
    if resource_type != BROKER:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no settings here")
    if not name:
        return ()
    if name != str(services.node_id):
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST, f"this is node {services.node_id}: ask node {name!r} for its own settings"
        )
    return describe_process(services.settings)


def _setting_fields(one: SettingValue, request: Any) -> dict[str, Any]:
    return {
        "name": one.key,
        "value": one.value,
        "read_only": one.is_read_only,
        "config_source": one.source,
        "is_sensitive": False,
        "synonyms": [
            {"name": synonym.key, "value": synonym.value, "source": synonym.source}
            for synonym in (one.synonyms if request.include_synonyms else ())
        ],
        "config_type": one.type,
        "documentation": one.description if getattr(request, "include_documentation", False) else None,
    }


_NEEDS = (
    Need(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "29 for that topic"),
    Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "31 for a node's settings"),
)

API = Api(32, "DescribeConfigs", 1, 4, handle, needs=_NEEDS)
