"""DescribeClientQuotas (48): the quotas that a filter finds, as this node's catalog has them.

A component of the filter asks for entities that name a user, a client id or an address: by name, the default, or any.
No component: all. Strict: only entities that name nothing else. Needs DESCRIBE_CONFIGS on the cluster. Flexible from 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.quotas.alterations import address_of
from stratalog.model.errors import StratalogError
from stratalog.model.quotas import DEFAULT, QuotaEntity
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.api.quotas.quota_fields import (
    CLIENT_ID,
    FIELDS,
    IP,
    USER,
    entity_fields,
    limit_fields,
    parts_of,
)
from stratalog_node.serve.api.topic_answers import TopicRefused, answer_to, no_right
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need

_Filter = dict[str, str | None]
"""The wanted name of each type; None: any."""


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(48, context.header.api_version)
    try:
        if not context.rights.may_cluster(Operation.DESCRIBE_CONFIGS):
            raise no_right(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        wanted = _filter_of(request.components)
    except StratalogError as refused:
        code, message = answer_to(refused)
        return messages.build(schema, throttle_time=0, error_code=code, error_message=message, entries=None)
    known = context.services.catalog.quotas.copied()
    is_strict = request.strict

    def found() -> dict[str, Any]:
        entries = [
            {"entity": entity_fields(entity), "values": limit_fields(limits)}
            for entity, limits in known.items()
            if _is_found(wanted, entity, is_strict=is_strict)
        ]
        return {"error_code": ErrorCode.NONE, "error_message": "", "entries": entries}

    return await encoded(schema, len(known), found)


def _filter_of(components: Iterable[Any]) -> _Filter:
    wanted: _Filter = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type.")
        if kind in wanted:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, f"Duplicate filter component entity type: {kind[:300]}")
        if kind not in FIELDS:
            raise TopicRefused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:300]}")
        wanted[kind] = _name_wanted(kind, component)
    if IP in wanted and (USER in wanted or CLIENT_ID in wanted):
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user or "
            "clientId filter component.",
        )
    return wanted


def _name_wanted(kind: str, component: Any) -> str | None:
    match component.match_type, component.match:
        case (0, str() as name) if name:
            return (address_of(name) or name) if kind == IP else name
        case (1, None):
            return DEFAULT
        case (2, None):
            return None
        case _:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected match type {component.match_type} for a filter of {kind}: 0 needs a name, 1 and 2 none",
            )


def _is_found(wanted: _Filter, entity: QuotaEntity, *, is_strict: bool) -> bool:
    names = dict(parts_of(entity))
    if is_strict and len(names) != len(wanted):
        return False
    return all(kind in names and (name is None or names[kind] == name) for kind, name in wanted.items())


_NEEDS = (Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "31"),)

API = Api(48, "DescribeClientQuotas", 0, 1, handle, needs=_NEEDS)
