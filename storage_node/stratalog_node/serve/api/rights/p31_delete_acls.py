"""DeleteAcls (31): deletes the rules (ACLs) that filters find, all in one transaction; each filter is answered with
what it found.

The answer comes when the meta service has deleted them and this node decides without them. Versions: pattern types from
1, flexible from 2. Without an authorizer each answer is SECURITY_DISABLED (54).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.model.commands.rights_commands import DeletedRules, DeleteRules
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType, Rule, RuleFilter
from stratalog_node.serve.api.rights.acl_fields import (
    SHOWN_WITHIN_MS,
    entry_fields,
    filter_of,
    outcome_fields,
    refusal,
    resource_fields,
)
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(31, context.header.api_version)
    asked = request.filters
    if (refused := refusal(context, Operation.ALTER)) is not None:
        answer = refused | {"matching_acls": ()}
        return await encoded(schema, len(asked), lambda: {"filter_results": [answer] * len(asked)})
    filters = await off_loop(len(asked), lambda: tuple(map(filter_of, asked)))
    outcomes = await _delete(context.services, filters)
    count = sum(1 + len(outcome.rules) for outcome in outcomes if isinstance(outcome, DeletedRules))
    return await encoded(schema, len(outcomes) + count, lambda: {"filter_results": list(map(_answer, outcomes))})


async def _delete(services: NodeServices, filters: tuple[RuleFilter, ...]) -> Sequence[DeletedRules | StratalogError]:
    try:
        outcomes = await services.meta.perform(DeleteRules(filters))
    except StratalogError as error:
        return [error] * len(filters)
    deleted = {rule for outcome in outcomes if isinstance(outcome, DeletedRules) for rule in outcome.rules}
    authorizer = services.catalog.rights.authorizer
    await catalog_shows_each(deleted, lambda rule: rule not in authorizer, SHOWN_WITHIN_MS)
    return outcomes


def _answer(outcome: DeletedRules | StratalogError) -> dict[str, object]:
    if isinstance(outcome, StratalogError):
        return outcome_fields(outcome) | {"matching_acls": ()}
    return outcome_fields(None) | {"matching_acls": list(map(_matching, outcome.rules))}


def _matching(rule: Rule) -> dict[str, object]:
    return outcome_fields(None) | resource_fields(rule.resource) | entry_fields(rule)


_NEEDS = (Need(Operation.ALTER, ResourceType.CLUSTER, "31 for each filter"),)

API = Api(31, "DeleteAcls", 1, 3, handle, needs=_NEEDS)
