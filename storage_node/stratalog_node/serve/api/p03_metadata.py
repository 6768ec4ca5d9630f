"""Metadata (3): the nodes, and where each shard's active segment is. Makes topics on demand; tells each topic once.

Null topics ask for all of them, an empty list for none (in version 0 an empty list asks for all). A topic that is
missing is made when `auto.create.topics.enable` and the client (from version 4) allow it. The leader epoch is the
active segment's epoch; sealed segments have no leader and are not shown. Any node answers as controller: all may write.
What a client may not describe is not listed; by its name it gets 29, whether it exists or not, by its id 29 without the
name. Versions: authorized operations from 8 (of the cluster until 10), topic ids from 10 (12 looks topics up by id:
unknown ones 100).
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.metadata import NOT_ASKED, OPERATIONS_SINCE, encode_metadata, encode_topic, with_operations
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import AlreadyExists, InvalidRequest, LimitExceeded, NameCollides, StratalogError
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog.model.topic import Topic
from stratalog_node.serve.api.brokers import living_and_just_departed, living_nodes
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.mutations import count_mutations
from stratalog_node.serve.api.p60_describe_cluster import cluster_operations
from stratalog_node.serve.api.placement import is_topic_name
from stratalog_node.serve.connections.client_rights import ClientRights
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows
from stratalog_node.slices import Slices

_INTERNAL_PREFIX = "__"
_CREATE_WAIT_MS = 1_000
_CREATE_PATIENCE_S = 5.0
"""For all topics that one request makes. What the connection sends behind it waits as long; the client asks again."""
_ALLOW_FLAG_SINCE = 4
_BY_ID_SINCE = 12


async def handle(context: RequestContext, request: Any) -> messages.EncodedBody:
    services, rights = context.services, context.rights
    version = context.header.api_version
    tells_operations = version >= OPERATIONS_SINCE and request.include_topic_authorized_operations
    topics: list[bytes] = []
    slices = Slices()
    nodes = living_and_just_departed
    if request.topics is None or (version == 0 and not request.topics):
        for topic in [*services.catalog.topics(), *services.catalog.mounted_topics()]:
            if rights.can(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                topics.append(_entry(context, version, topic, tells_operations=tells_operations))
            await slices.did()
    else:
        may_create = services.settings.auto_create_topics_enable and (
            version < _ALLOW_FLAG_SINCE or request.allow_auto_topic_creation
        )
        if not request.topics:
            # no leader is asked for, so none is lost with a broker (serve/connections/control_state.py)
            nodes = living_nodes
        create_until = asyncio.get_running_loop().time() + _CREATE_PATIENCE_S if may_create else 0.0
        distinct, _ = await first_of_each(request.topics, lambda asked: _key(asked, version))
        for asked in distinct.values():
            topics.append(await _one(context, version, asked, create_until, tells_operations=tells_operations))
            await slices.did()
    asks_for_cluster = getattr(request, "include_cluster_authorized_operations", False)
    operations = cluster_operations(rights) if asks_for_cluster else NOT_ASKED
    body = encode_metadata(version, nodes(context), services.cluster_id, services.node_id, topics, operations)
    return messages.EncodedBody(body)


def _key(asked: Any, version: int) -> UUID | str | None:
    """A topic that is asked for repeatedly is answered once."""
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    name: str | None = asked.name
    return topic_id if topic_id is not None and topic_id.int and version >= _BY_ID_SINCE else name


def _entry(context: RequestContext, version: int, topic: Topic, *, tells_operations: bool) -> bytes:
    services = context.services
    entry = services.control.metadata.topic(services.catalog, topic, version, context.connection.listener)
    if not tells_operations:
        return entry
    return with_operations(version, entry, context.rights.operations(ResourceType.TOPIC, topic.name))


async def _one(
    context: RequestContext, version: int, asked: Any, create_until: float, *, tells_operations: bool
) -> bytes:
    """`create_until`: on the loop's clock; 0 when nothing is made."""
    services, rights = context.services, context.rights
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    if topic_id is not None and topic_id.int and version >= _BY_ID_SINCE:
        known = services.catalog.topic_by_id(topic_id)
        if known is None:
            return encode_topic(version, ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id, False, ())
        if not rights.may_topic(Operation.DESCRIBE, known.name):
            return encode_topic(version, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id, False, ())
        return _entry(context, version, known, tells_operations=tells_operations)
    name = asked.name
    if name is None:
        return encode_topic(version, ErrorCode.INVALID_REQUEST, None, None, False, ())
    if not rights.may_topic(Operation.DESCRIBE, name):
        return encode_topic(version, ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, None, False, ())
    topic = services.catalog.topic(name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None and not is_topic_name(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic is None and create_until and not name.startswith(_INTERNAL_PREFIX):
        if _may_create(rights, name):
            error = await _create(context, name, create_until)
        else:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = services.catalog.topic(name)
    if topic is None:
        return encode_topic(version, error, name, None, False, ())
    return _entry(context, version, topic, tells_operations=tells_operations)


def _may_create(rights: ClientRights, name: str) -> bool:
    return rights.can(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or rights.may_topic(Operation.CREATE, name)


async def _create(context: RequestContext, name: str, until: float) -> ErrorCode:
    """Make a topic with the process's defaults. Returns: what to say if the catalog does not show it after that."""
    if asyncio.get_running_loop().time() >= until:
        return ErrorCode.LEADER_NOT_AVAILABLE
    services = context.services
    settings = services.settings
    count_mutations(context, settings.num_partitions)
    command = CreateTopic(
        name,
        shard_count=settings.num_partitions,
        replication_factor=settings.default_replication_factor,
        settings={},
    )
    created: Topic | None
    try:
        async with asyncio.timeout_at(until):
            created = await services.meta.perform(command)
    except TimeoutError:  # it may still be created: a client that asks again then gets it
        return ErrorCode.LEADER_NOT_AVAILABLE
    except AlreadyExists:
        created = None
    except NameCollides:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # as Kafka, which makes topics behind its answer
    except (InvalidRequest, LimitExceeded):
        return ErrorCode.INVALID_REPLICATION_FACTOR
    except StratalogError:
        return ErrorCode.LEADER_NOT_AVAILABLE
    await catalog_shows(lambda: _is_known(services, name, created), _CREATE_WAIT_MS)
    return ErrorCode.LEADER_NOT_AVAILABLE


def _is_known(services: NodeServices, name: str, created: Topic | None) -> bool:
    known = services.catalog.topic(name)
    return known is not None and (created is None or known.topic_id == created.topic_id)


_NEEDS = (
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "not listed; 29 for a topic that the request names"),
    Need(Operation.CREATE, ResourceType.CLUSTER, "CREATE on the topic is enough; where topics are made on demand"),
    Need(Operation.CREATE, ResourceType.TOPIC, "29 for a topic that would be made on demand"),
    Need(Operation.DESCRIBE, ResourceType.CLUSTER, "authorized operations of the cluster are 0"),
)

API = Api(3, "Metadata", 0, 12, handle, needs=_NEEDS)
