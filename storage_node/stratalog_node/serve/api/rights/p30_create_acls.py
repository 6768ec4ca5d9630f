"""CreateAcls (30): rules (ACLs), each kept or refused by itself; one that is there already is created again at no cost.

The answer comes when the meta service has them and this node decides by them. Versions: pattern types from 1, flexible
from 2. Without an authorizer each answer is SECURITY_DISABLED (54).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.rights_commands import CreateRules
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType, Rule
from stratalog_node.serve.api.rights.acl_fields import SHOWN_WITHIN_MS, outcome_fields, refusal, rule_of
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(30, context.header.api_version)
    asked = request.creations
    if (refused := refusal(context, Operation.ALTER)) is not None:
        return await encoded(schema, len(asked), lambda: {"results": [refused] * len(asked)})
    rules = await off_loop(len(asked), lambda: tuple(map(rule_of, asked)))
    outcomes = await _create(context.services, rules)
    return await encoded(schema, len(outcomes), lambda: {"results": list(map(_answer, outcomes))})


async def _create(services: NodeServices, rules: tuple[Rule, ...]) -> Sequence[Rule | StratalogError]:
    try:
        outcomes = await services.meta.perform(CreateRules(rules))
    except StratalogError as error:
        return [error] * len(rules)
    created = [outcome for outcome in outcomes if isinstance(outcome, Rule)]
    authorizer = services.catalog.rights.authorizer
    await catalog_shows_each(created, authorizer.__contains__, SHOWN_WITHIN_MS)
    return outcomes


def _answer(outcome: Rule | StratalogError) -> dict[str, object]:
    if isinstance(outcome, StratalogError):
        return outcome_fields(outcome)
    return {"error_code": ErrorCode.NONE, "error_message": ""}


_NEEDS = (Need(Operation.ALTER, ResourceType.CLUSTER, "31 for each rule"),)

API = Api(30, "CreateAcls", 1, 3, handle, needs=_NEEDS)
