"""CreateTopics (19): a topic, its shards and the first segment of each.

The answer comes when the meta service has it and this node's catalog shows it. -1 for count or replication factor takes
the process's default. Names that the service keeps for itself are refused (17). Placement is the meta service's:
replica assignments by the client are refused (39). Settings are checked whole before anything is made (40 names key,
value and what is allowed).
Versions: message and validate_only from 1, flexible and the topic's settings in the answer from 5, topic id from 7.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import InvalidRequest, Reserved, StratalogError
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog.model.topic import Topic
from stratalog.settings.describe import SettingValue, describe_topic
from stratalog.settings.kafka_names import under_our_names
from stratalog.settings.topic import TopicSettings
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.mutations import count_mutations
from stratalog_node.serve.api.placement import is_topic_name
from stratalog_node.serve.api.topic_answers import TopicRefused, answer_to, named_twice, wait_ms
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each
from stratalog_node.slices import Slices

_DEFAULT = -1
_ENTRIES_OF_A_TOPIC = 20
"""What one topic costs, in entries: its settings are checked."""


async def handle(context: RequestContext, request: Any) -> Any:
    services, rights = context.services, context.rights
    schema = messages.response_type(19, context.header.api_version)
    settings_told = _SettingsOfTopics(schema, services)
    answers = []
    created: list[Topic] = []
    distinct, doubles = await first_of_each(request.topics, lambda topic: topic.name)
    slices = Slices()
    for asked in distinct.values():
        try:
            if asked.name in doubles:
                raise named_twice(asked.name)
            may_create_all = rights.can(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
            if not may_create_all and not rights.may_topic(Operation.CREATE, asked.name):
                raise TopicRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
            topic = await _create(context, asked, is_trial=request.validate_only)
            created.append(topic)
            may_see = rights.can(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name)
            answers.append(_success(topic, settings_told.of(topic)) if may_see else _unseen(topic))
        except StratalogError as error:
            answers.append(_failure(asked.name, *answer_to(error)))
        await slices.did(_ENTRIES_OF_A_TOPIC)
    if not request.validate_only:
        catalog = services.catalog
        await catalog_shows_each(
            created, lambda topic: catalog.topic_by_id(topic.topic_id) is not None, wait_ms(request.timeout)
        )
    return await encoded(schema, len(answers), lambda: {"topics": answers})


async def _create(context: RequestContext, asked: Any, *, is_trial: bool) -> Topic:
    services = context.services
    if not is_topic_name(asked.name):
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {asked.name[:300]!r} is not allowed: use 1 to 249 of letters, digits, '.', '_' and '-', "
            "not '.' or '..'",
        )
    if asked.assignments:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "segments are placed by the meta service: name counts, not nodes",
        )
    settings = services.settings
    shards = settings.num_partitions if asked.num_partitions == _DEFAULT else asked.num_partitions
    replicas = settings.default_replication_factor if asked.replication_factor == _DEFAULT else asked.replication_factor
    if shards < 1:
        raise TopicRefused(ErrorCode.INVALID_PARTITIONS, f"{shards} partitions: at least 1 is needed")
    nodes = sum(node.is_alive for node in services.catalog.nodes())
    if replicas < 1 or replicas > max(nodes, 1):
        raise TopicRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {replicas} must be from 1 to {max(nodes, 1)}"
        )
    try:
        overrides = under_our_names(overrides_of(asked.configs))
        TopicSettings.validate_overrides(overrides, settings)
    except InvalidRequest as error:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    count_mutations(context, shards)
    try:
        return await services.meta.perform(
            CreateTopic(asked.name, shard_count=shards, replication_factor=replicas, settings=overrides),
            validate_only=is_trial,
        )
    except Reserved as error:
        raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error


def overrides_of(configs: Any) -> dict[str, str]:
    """The settings a client names. Raises: InvalidRequest for a null value or a key named twice."""
    overrides: dict[str, str] = {}
    for config in configs:
        if config.value is None:
            raise InvalidRequest(f"topic setting {config.name} has no value: leave it out to take the default")
        if config.name in overrides:
            raise InvalidRequest(f"topic setting {config.name} is named twice: name it once")
        overrides[config.name] = config.value
    return overrides


class _SettingsOfTopics:
    """The settings in the answer, made once for all topics of the request that have the same."""

    def __init__(self, schema: Any, services: NodeServices) -> None:
        self._services = services
        self._made: dict[frozenset[tuple[str, str]], tuple[Any, ...]] = {}
        topic = messages.element_type(schema, "topics")
        self._element = messages.element_type(topic, "configs") if _tells_settings(topic) else None

    def of(self, topic: Topic) -> tuple[Any, ...] | None:
        if self._element is None:
            return None
        key = frozenset(topic.settings.items())
        made = self._made.get(key)
        if made is None:
            described = describe_topic(self._services.settings, topic.settings)
            made = self._made[key] = tuple(self._setting_entry(one) for one in described)
        return made

    def _setting_entry(self, one: SettingValue) -> Any:
        return messages.build(
            self._element,
            name=one.key,
            value=one.value,
            read_only=one.is_read_only,
            config_source=one.source,
            is_sensitive=False,
        )


def _tells_settings(topic_schema: Any) -> bool:
    return any(field.name == "configs" for field in fields(topic_schema))


def _success(topic: Topic, configs: tuple[Any, ...] | None) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.shard_count,
        "replication_factor": topic.replication_factor,
        "configs": configs,
    }


def _unseen(topic: Topic) -> dict[str, Any]:
    """What a client hears that may create the topic, and not describe its settings."""
    return _success(topic, ()) | {
        "num_partitions": -1,
        "replication_factor": -1,
        "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def _failure(name: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


_NEEDS = (
    Need(Operation.CREATE, ResourceType.CLUSTER, "CREATE on the topic is enough"),
    Need(Operation.CREATE, ResourceType.TOPIC, "29 for that topic"),
    Need(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "the answer does not show the topic's settings"),
)

API = Api(19, "CreateTopics", 2, 7, handle, needs=_NEEDS)
