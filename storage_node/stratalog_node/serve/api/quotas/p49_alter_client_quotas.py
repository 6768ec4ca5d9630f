"""AlterClientQuotas (49): sets and removes limits of users, client ids and addresses; each entity by itself.

An entity and a key of it may be named once in a request; as in Kafka each entity is answered once. The answer comes
when the meta service has them and this node counts by them. Needs ALTER_CONFIGS on the cluster. Flexible from 1.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, TypeAlias

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
from stratalog_node.shards.catalog.wait import catalog_shows_each

_SHOWN_WITHIN_MS = 1_000

_Parts: TypeAlias = tuple[tuple[str, str | None], ...]
"""The kinds and names of an entity as a client wrote them, each once."""

_NAMED_TWICE = "This entity is named more than once in one request: send it once"


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(49, context.header.api_version)
    count = len(request.entries) + sum(len(entry.ops) + len(entry.entity) for entry in request.entries)
    asked = await off_loop(count, lambda: _by_entity(request.entries))
    if not context.rights.may_cluster(Operation.ALTER_CONFIGS):
        denied = no_right(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        outcomes: list[QuotaAlteration | StratalogError | None] = [denied] * len(asked)
    else:
        outcomes = await off_loop(count, lambda: _read(asked))
        if not request.validate_only:
            outcomes = await _alter(context.services, outcomes)
    return await encoded(schema, len(asked), lambda: {"entries": list(map(_answer, asked, outcomes))})


def _by_entity(entries: Any) -> dict[_Parts, list[Any]]:
    asked: dict[_Parts, list[Any]] = {}
    for entry in entries:
        parts = dict.fromkeys((part.entity_type, part.entity_name) for part in entry.entity)
        asked.setdefault(tuple(parts), []).append(entry)
    return asked


def _read(asked: dict[_Parts, list[Any]]) -> list[QuotaAlteration | StratalogError | None]:
    """What is to be done of each entity, or why it is refused."""
    outcomes: list[QuotaAlteration | StratalogError | None] = []
    for entry, *more in asked.values():
        try:
            if more:
                raise InvalidRequest(_NAMED_TWICE)
            alteration = QuotaAlteration(_entity_of(entry.entity), tuple(map(_change_of, entry.ops)))
            altered(NO_LIMITS, alteration)
            outcomes.append(alteration)
        except StratalogError as refused:
            outcomes.append(refused)
    times = Counter(one.entity for one in outcomes if isinstance(one, QuotaAlteration))
    return [
        InvalidRequest(_NAMED_TWICE) if isinstance(one, QuotaAlteration) and times[one.entity] > 1 else one
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
    await catalog_shows_each(made, partial(_is_shown, services), _SHOWN_WITHIN_MS)
    return [done[one] if isinstance(one, QuotaAlteration) else one for one in outcomes]


def _is_shown(services: NodeServices, alteration: QuotaAlteration) -> bool:
    limits = services.catalog.quotas.limits(alteration.entity) or NO_LIMITS
    return altered(limits, alteration) == limits


def _answer(parts: _Parts, outcome: QuotaAlteration | StratalogError | None) -> dict[str, object]:
    code, message = answer_to(outcome) if isinstance(outcome, StratalogError) else (ErrorCode.NONE, None)
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts]
    return {"error_code": code, "error_message": message, "entity": entity}


_NEEDS = (Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "31 for each entity"),)

API = Api(49, "AlterClientQuotas", 0, 1, handle, needs=_NEEDS)
