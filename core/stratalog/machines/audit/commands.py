"""What the commands of the meta service change, as the audit log says it. Pure.

Every command that may be asked for is in exactly one of two tables: what a person decides is audited, and what nodes do
by themselves to keep data is not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from stratalog.machines.audit.lines import Change, Outcome
from stratalog.model.commands import mount_commands as mounts
from stratalog.model.commands import retirement_commands as retirements
from stratalog.model.commands import rights_commands as rights
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.table_commands import Command, NodeCommand
from stratalog.model.errors import Forbidden, OutcomeUnknown, StratalogError
from stratalog.model.rights import Rule, RuleFilter

NameOf: TypeAlias = Callable[[UUID], str]
"""The name of a topic, or its id as text where it is not known."""
_Describe: TypeAlias = Callable[[Any, NameOf], Iterator[Change]]

TOPIC: Final = "TOPIC"
NODE: Final = "NODE"
MOUNT: Final = "MOUNT"
USER: Final = "USER"
CLIENT_QUOTA: Final = "CLIENT_QUOTA"

_PLAIN: Final = re.compile(r"[\w.:@/+-]+", re.ASCII)
"""Names that cannot be taken for two, for a default, or for a quoted one."""
_LONGEST_PART: Final = 100
"""Characters of a name in the text of an entity: the text shows both names of one."""


def rule_details(rule: Rule) -> dict[str, str]:
    """A rule without its resource."""
    return {
        "pattern": rule.resource.pattern.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permission": rule.permission.name,
    }


def filter_details(wanted: RuleFilter) -> dict[str, str | None]:
    """A filter without its resource."""
    return {
        "pattern": wanted.pattern.name,
        "principal": wanted.principal,
        "host": wanted.host,
        "operation": wanted.operation.name,
        "permission": wanted.permission.name,
    }


def deleted_rules(wanted: RuleFilter, outcome: rights.DeletedRules | StratalogError | None) -> Iterator[Change]:
    """A change for each rule that a filter found, so none where it found none: nothing was changed. Where the filter
    was refused, or the answer is not known (None), one for the filter."""
    if isinstance(outcome, rights.DeletedRules):
        for rule in outcome.rules:
            yield Change("DeleteAcls", rule.resource.type.name, rule.resource.name, rule_details(rule))
    else:
        details = {"filter": filter_details(wanted)}
        yield Change("DeleteAcls", wanted.resource_type.name, wanted.name or "", details)


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> str:
    """The entity of a quota as text, from the types of its parts and their names; None: the default. Two entities have
    the same text only where a name is cut."""
    return ", ".join(f"{_quoted(of_type)}={'<default>' if name is None else _quoted(name)}" for of_type, name in parts)


def _quoted(name: str) -> str:
    if len(name) > _LONGEST_PART:
        return f"{json.dumps(name[:_LONGEST_PART])}... ({len(name)} characters)"
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def error_name(error: BaseException | None) -> str:
    return "" if error is None else type(error).__name__


def outcome_of(error: BaseException | None) -> Outcome:
    """Errors that are not ours are faults: what was done is not known."""
    if error is None:
        return Outcome.DONE
    if isinstance(error, Forbidden):
        return Outcome.DENIED
    is_open = isinstance(error, OutcomeUnknown) or not isinstance(error, StratalogError)
    return Outcome.UNKNOWN if is_open else Outcome.FAILED


def is_audited(command: Command[Any]) -> bool:
    return type(command) in AUDITED


def changes_of(
    command: Command[Any], answer: object, error: BaseException | None, name_of: NameOf
) -> Iterator[tuple[Change, BaseException | None]]:
    """Each change that a command asked for, with its own error. `answer` counts where there is no `error`."""
    node = command.caller.node_id if isinstance(command, NodeCommand) and command.caller is not None else None
    for change, why in _changes(command, answer, error, name_of):
        if node is not None:
            change = Change(change.action, change.resource_type, change.resource, {**change.details, "node": node})
        yield change, why


def _changes(
    command: Command[Any], answer: Any, error: BaseException | None, name_of: NameOf
) -> Iterator[tuple[Change, BaseException | None]]:
    match command:
        case rights.DeleteRules(filters=filters):
            for number, wanted in enumerate(filters):
                outcome = None if error is not None else answer[number]
                why = error or (outcome if isinstance(outcome, StratalogError) else None)
                for change in deleted_rules(wanted, outcome):
                    yield change, why
        case rights.CreateRules() | rights.AlterCredentials() | rights.AlterQuotas():
            for number, change in enumerate(AUDITED[type(command)](command, name_of)):
                why = error or (answer[number] if isinstance(answer[number], StratalogError) else None)
                yield change, why
        case _:
            for change in AUDITED[type(command)](command, name_of):
                yield change, error


# Descriptions -----------------------------------------------------------------------------------------------------
def _created(one: commands.CreateTopic, _: NameOf) -> Iterator[Change]:
    details = {"shards": one.shard_count, "replication_factor": one.replication_factor, "settings": list(one.settings)}
    yield Change("CreateTopic", TOPIC, one.name, details)


def _deleted(one: commands.DeleteTopic, name_of: NameOf) -> Iterator[Change]:
    yield Change("DeleteTopic", TOPIC, name_of(one.topic_id), {"topic_id": str(one.topic_id)})


def _grown(one: commands.AddShards, name_of: NameOf) -> Iterator[Change]:
    details = {"topic_id": str(one.topic_id), "shards": one.shard_count}
    yield Change("AddShards", TOPIC, name_of(one.topic_id), details)


def _altered(one: commands.AlterTopic, name_of: NameOf) -> Iterator[Change]:
    before = one.expected or {}
    changed = sorted(key for key in {*before, *one.settings} if before.get(key) != one.settings.get(key))
    details: dict[str, Any] = {"topic_id": str(one.topic_id), "settings": changed}
    if one.shard_count is not None:
        details["shards"] = one.shard_count
    yield Change("AlterTopic", TOPIC, name_of(one.topic_id), details)


def _sealed(one: commands.SealTopic, name_of: NameOf) -> Iterator[Change]:
    yield Change("SealTopic", TOPIC, name_of(one.topic_id), {"topic_id": str(one.topic_id), "asked_ms": one.asked_ms})


def _rolled(one: commands.RollElsewhere, name_of: NameOf) -> Iterator[Change]:
    counts = Counter(key.topic_id for key in one.segments)
    for topic_id, count in counts.items():
        yield Change("RollElsewhere", TOPIC, name_of(topic_id), {"topic_id": str(topic_id), "segments": count})


def _given_up(one: commands.SealUnclean, name_of: NameOf) -> Iterator[Change]:
    key = one.segment
    details = {"shard": key.shard, "epoch": key.epoch, "base_offset": key.base_offset}
    yield Change("SealUnclean", TOPIC, name_of(key.topic_id), details)


def _retired(one: retirements.RetireNode, _: NameOf) -> Iterator[Change]:
    details = {"mode": one.mode.value, "is_forced": one.force_storage_id is not None}
    yield Change("RetireNode", NODE, str(one.node_id), details)


def _kept(one: retirements.CancelRetirement, _: NameOf) -> Iterator[Change]:
    yield Change("CancelRetirement", NODE, str(one.node_id))


def _mounted(one: mounts.CreateMount, _: NameOf) -> Iterator[Change]:
    times = {"from_ms": one.from_ms, "until_ms": one.until_ms, "lasts_ms": one.lasts_ms}
    yield Change("CreateMount", MOUNT, one.name, {"topics": list(one.topics), **times, "snapshot": one.snapshot})


def _mounted_cut(one: mounts.MountCut, _: NameOf) -> Iterator[Change]:
    yield Change("MountCut", MOUNT, one.name, {"shards": len(one.shards), "lasts_ms": one.lasts_ms})


def _mounted_node(one: mounts.BeginMount, _: NameOf) -> Iterator[Change]:
    yield Change("BeginMount", NODE, str(one.node_id), {"mode": one.mode.value})


def _moved(one: mounts.MoveMount, _: NameOf) -> Iterator[Change]:
    yield Change("MoveMount", MOUNT, one.name, {"to_node": one.node_id})


def _ended(one: mounts.EndMount, _: NameOf) -> Iterator[Change]:
    yield Change("EndMount", MOUNT, one.name, {"is_forced": one.force_storage_id is not None})


def _rules(one: rights.CreateRules, _: NameOf) -> Iterator[Change]:
    for rule in one.rules:
        yield Change("CreateAcls", rule.resource.type.name, rule.resource.name, rule_details(rule))


def _rules_deleted(one: rights.DeleteRules, _: NameOf) -> Iterator[Change]:
    for wanted in one.filters:
        yield from deleted_rules(wanted, None)


def _credentials(one: rights.AlterCredentials, _: NameOf) -> Iterator[Change]:
    for name in one.deleted:
        yield Change("DeleteUserScramCredentials", USER, name.user, {"mechanism": name.mechanism.mechanism_name})
    for put in one.put:
        yield Change("SetUserScramCredentials", USER, put.user, {"mechanism": put.mechanism.mechanism_name})


def _quotas(one: rights.AlterQuotas, _: NameOf) -> Iterator[Change]:
    for altered in one.alterations:
        entity = altered.entity
        parts = {"user": entity.user, "client-id": entity.client_id, "ip": entity.ip}
        named = quota_entity((part, name or None) for part, name in parts.items() if name is not None)
        yield Change("AlterClientQuotas", CLIENT_QUOTA, named)


AUDITED: Final[Mapping[type[Command[Any]], _Describe]] = {
    commands.CreateTopic: _created,
    commands.DeleteTopic: _deleted,
    commands.AddShards: _grown,
    commands.AlterTopic: _altered,
    commands.SealTopic: _sealed,
    commands.RollElsewhere: _rolled,
    commands.SealUnclean: _given_up,
    retirements.RetireNode: _retired,
    retirements.CancelRetirement: _kept,
    mounts.CreateMount: _mounted,
    mounts.MountCut: _mounted_cut,
    mounts.BeginMount: _mounted_node,
    mounts.MoveMount: _moved,
    mounts.EndMount: _ended,
    rights.CreateRules: _rules,
    rights.DeleteRules: _rules_deleted,
    rights.AlterCredentials: _credentials,
    rights.AlterQuotas: _quotas,
}
NOT_AUDITED: Final[frozenset[type[Command[Any]]]] = frozenset(
    {
        commands.RegisterNode,
        commands.ForgetLocal,
        commands.ReportLostCopies,
        commands.ReportFaultyCopies,
        commands.WidenTopic,
        commands.AdvanceLogStart,
        commands.PrepareSegment,
        commands.RollSegment,
        commands.SealSegment,
        commands.ReportReplica,
        commands.ProposeIsr,
        commands.BeginRecovery,
        commands.PromiseFence,
        commands.PurgeSegments,
        commands.CommitParts,
        commands.ReplaceParts,
        commands.CompleteRemote,
        commands.ReplaceManifest,
        commands.AcquireLock,
        commands.ReleaseLock,
        commands.AllocateProducerIds,
        retirements.ReportSighting,
        retirements.ReportInventory,
        mounts.TakeMount,
        mounts.DoubtMount,
        mounts.ReleaseMount,
        mounts.OpenVolume,
        mounts.CloseVolume,
    }
)
"""What nodes do by themselves. Records that a client deletes are in the log of the node that it asked."""
