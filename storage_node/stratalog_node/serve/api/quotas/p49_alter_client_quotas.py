"""AlterClientQuotas (49): sets and removes limits of users, client ids and addresses; each entity by itself.

An entity and a key of it may be named once in a request. The answer comes when the meta service has them and this node
counts by them. Needs ALTER_CONFIGS on the cluster. Flexible from 1.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.quotas.alterations import NO_LIMITS, address_of, altered
from stratalog.model.commands.rights_commands import AlterQuotas
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.model.quotas import DEFAULT, QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.api.quotas.quota_fields import FIELDS, IP
from stratalog_node.serve.api.topic_answers import answer_to, no_right
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows

_SHOWN_WITHIN_MS = 1_000


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(49, context.header.api_version)
    entries = request.entries
    count = len(entries) + sum(len(entry.ops) for entry in entries)
    if not context.rights.may_cluster(Operation.ALTER_CONFIGS):
        denied = no_right(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        outcomes: list[QuotaAlteration | StratalogError | None] = [denied] * len(entries)
    else:
        outcomes = await off_loop(count, lambda: _read(entries))
        if not request.validate_only:
            outcomes = await _alter(context.services, outcomes)
    return await encoded(schema, len(entries), lambda: {"entries": list(map(_answer, entries, outcomes))})


def _read(entries: Any) -> list[QuotaAlteration | StratalogError | None]:
    """What is to be done of each entry, or why it is refused."""
    outcomes: list[QuotaAlteration | StratalogError | None] = []
    for entry in entries:
        try:
            alteration = QuotaAlteration(_entity_of(entry.entity), tuple(map(_change_of, entry.ops)))
            altered(NO_LIMITS, alteration)
            outcomes.append(alteration)
        except StratalogError as refused:
            outcomes.append(refused)
    times = Counter(one.entity for one in outcomes if isinstance(one, QuotaAlteration))
    return [
        InvalidRequest("This entity is named more than once in one request: send it once")
        if isinstance(one, QuotaAlteration) and times[one.entity] > 1
        else one
        for one in outcomes
    ]


def _entity_of(parts: Any) -> QuotaEntity:
    names: dict[str, str] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind not in FIELDS:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind[:300]}")
        if FIELDS[kind] in names:
            raise InvalidRequest(f"Invalid client quota entity, duplicate entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
        if kind == IP and name is not None:
            name = address_of(name) or name
        names[FIELDS[kind]] = DEFAULT if name is None else name
    return QuotaEntity(**names)


def _change_of(op: Any) -> QuotaChange:
    try:
        return QuotaChange(QuotaKey(op.key), None if op.remove else op.value)
    except ValueError:
        raise InvalidRequest(f"Invalid configuration key {op.key[:300]}") from None


async def _alter(
    services: NodeServices, outcomes: list[QuotaAlteration | StratalogError | None]
) -> list[QuotaAlteration | StratalogError | None]:
    """The same with what the meta service made of them."""
    asked = tuple(one for one in outcomes if isinstance(one, QuotaAlteration))
    if not asked:
        return outcomes
    try:
        done = dict(zip(asked, await services.meta.perform(AlterQuotas(asked)), strict=True))
    except StratalogError as failure:
        done = dict.fromkeys(asked, failure)
    made = [one for one in asked if done[one] is None]
    await catalog_shows(lambda: all(_is_shown(services, one) for one in made), _SHOWN_WITHIN_MS)
    return [done[one] if isinstance(one, QuotaAlteration) else one for one in outcomes]


def _is_shown(services: NodeServices, alteration: QuotaAlteration) -> bool:
    limits = services.catalog.quotas.limits(alteration.entity) or NO_LIMITS
    return altered(limits, alteration) == limits


def _answer(entry: Any, outcome: QuotaAlteration | StratalogError | None) -> dict[str, object]:
    code, message = answer_to(outcome) if isinstance(outcome, StratalogError) else (ErrorCode.NONE, None)
    entity = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
    return {"error_code": code, "error_message": message, "entity": entity}


_NEEDS = (Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "31 for each entity"),)

API = Api(49, "AlterClientQuotas", 0, 1, handle, needs=_NEEDS)
