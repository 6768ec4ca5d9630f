"""Rules and filters in Kafka's messages, and what the APIs of rules answer without an authorizer.

A number that no value of an enum has is UNKNOWN, as in Kafka: it is refused with the reason, rule by rule.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog_node.serve.api.topic_answers import answer_to, no_right
from stratalog_node.serve.connections.context import RequestContext

NO_AUTHORIZER = "No Authorizer is configured."
SHOWN_WITHIN_MS = 1_000
"""What was changed is answered once this node decides by it, or after so long."""

_E = TypeVar("_E", bound=IntEnum)


def rule_of(asked: Any) -> Rule:
    """Of a creation."""
    resource = Resource(
        _known(ResourceType, asked.resource_type), asked.resource_name, _known(PatternType, asked.resource_pattern_type)
    )
    operation, permission = _known(Operation, asked.operation), _known(Permission, asked.permission_type)
    return Rule(resource, asked.principal, asked.host, operation, permission)


def filter_of(asked: Any) -> RuleFilter:
    """Of a description or a deletion."""
    return RuleFilter(
        _known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _known(Operation, asked.operation),
        _known(Permission, asked.permission_type),
    )


def entry_fields(rule: Rule) -> dict[str, object]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": int(rule.operation),
        "permission_type": int(rule.permission),
    }


def resource_fields(resource: Resource) -> dict[str, object]:
    return {
        "resource_type": int(resource.type),
        "resource_name": resource.name,
        "pattern_type": int(resource.pattern),
    }


def outcome_fields(error: StratalogError | None) -> dict[str, object]:
    code, message = (ErrorCode.NONE, None) if error is None else answer_to(error)
    return {"error_code": code, "error_message": message}


def refusal(context: RequestContext, operation: Operation) -> dict[str, object] | None:
    """What a request about rules is answered that is not performed; None if it is."""
    if not context.services.settings.has_authorizer:
        return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER}
    return no_right_fields(context, operation)


def no_right_fields(context: RequestContext, operation: Operation) -> dict[str, object] | None:
    """None for a client that may do this to the cluster."""
    if context.rights.may_cluster(operation):
        return None
    return outcome_fields(no_right(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def _known(kind: type[_E], number: int) -> _E:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
