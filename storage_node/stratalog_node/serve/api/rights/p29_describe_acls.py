"""DescribeAcls (29): the rules (ACLs) that a filter finds, by resource, as this node's catalog has them.

A kind of resource or pattern that is not known is refused (42); an operation that is not known finds nothing, as in
Kafka.

Versions: pattern types from 1, flexible from 2. Without an authorizer the answer is SECURITY_DISABLED (54).
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.rights.authorizer import is_found
from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import Operation, PatternType, Resource, ResourceType, Rule, RuleFilter
from stratalog_node.serve.api.rights.acl_fields import (
    entry_fields,
    filter_of,
    outcome_fields,
    refusal,
    resource_fields,
)
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    schema = messages.response_type(29, context.header.api_version)
    if (refused := refusal(context, Operation.DESCRIBE)) is not None:
        return messages.build(schema, throttle_time=0, resources=(), **refused)
    wanted = filter_of(request)
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern is PatternType.UNKNOWN:
        unknown = outcome_fields(InvalidRequest("Unknown patternFilter."))
        return messages.build(schema, throttle_time=0, resources=(), **unknown)
    rules = list(services.catalog.rights.authorizer.rules())  # a copy: they may change while a thread reads them
    return await encoded(schema, len(rules), lambda: _found(rules, wanted))


def _found(rules: list[Rule], wanted: RuleFilter) -> dict[str, Any]:
    by_resource: dict[Resource, list[dict[str, object]]] = {}
    for rule in rules:
        if is_found(wanted, rule):
            by_resource.setdefault(rule.resource, []).append(entry_fields(rule))
    resources = [resource_fields(resource) | {"acls": acls} for resource, acls in by_resource.items()]
    return {"error_code": ErrorCode.NONE, "error_message": "", "resources": resources}


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.CLUSTER, "31"),)

API = Api(29, "DescribeAcls", 1, 3, handle, needs=_NEEDS)
