"""What the requests of Kafka clients change, for the audit log: one table, by API key.

An API that is in neither `CHANGES` nor `NOT_CHANGES` fails a test. Descriptions read the request and its answer as they
were on the wire, in the thread of the audit log; so a handler cannot forget to report, and the event loop makes no
line. A request whose answer never came (its client went away, a fault) is described by what it asked for.
What the authorizer denied is counted where it is asked (`client_rights`), and is not described here again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.machines.audit.commands import CLIENT_QUOTA, TOPIC, USER, deleted_rules, quota_entity, rule_details
from stratalog.machines.audit.lines import AuditLine, Change, Outcome
from stratalog.model.commands.rights_commands import DeletedRules
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import ScramMechanism
from stratalog.telemetry.audit_log import AuditLog
from stratalog_node.serve.api.rights.acl_fields import filter_of, rule_of
from stratalog_node.serve.connections.context import ConnectionInfo

GROUP: Final = "GROUP"
_RESOURCES: Final = {2: TOPIC, 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: GROUP}
"""Types of resources with settings."""
_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class Done(NamedTuple):
    """A change, and the code that its client got; None: there is no answer."""

    change: Change
    code: int | None


Describe: TypeAlias = Callable[[Any, Any], Iterator[Done]]
"""Of a request and its answer, or None."""


def _code(answer: Any) -> int | None:
    return None if answer is None else int(answer.error_code)


def _by(entries: Iterable[Any] | None, name: Callable[[Any], Any]) -> dict[Any, Any]:
    return {name(entry): entry for entry in entries or ()}


def _settings(configs: Iterable[Any], code: int | None) -> dict[str, str | None]:
    """Values only of what was accepted: others may be anything, a password in the wrong place."""
    is_accepted = code == ErrorCode.NONE
    return {config.name: config.value if is_accepted else None for config in configs or ()}


def _created_topics(request: Any, answer: Any) -> Iterator[Done]:
    answers = _by(answer and answer.topics, lambda topic: topic.name)
    for topic in () if request.validate_only else request.topics:
        code = _code(answers.get(topic.name))
        details = {
            "shards": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "settings": _settings(topic.configs, code),
        }
        yield Done(Change("CreateTopics", TOPIC, topic.name, details), code)


def _deleted_topics(request: Any, answer: Any) -> Iterator[Done]:
    if answer is not None:
        for one in answer.responses:
            topic_id = getattr(one, "topic_id", None)
            details = {} if topic_id is None else {"topic_id": str(topic_id)}
            yield Done(Change("DeleteTopics", TOPIC, _name_or_id(one), details), _code(one))
        return
    names = request.topic_names if hasattr(request, "topic_names") else [_name_or_id(one) for one in request.topics]
    for name in dict.fromkeys(names):
        yield Done(Change("DeleteTopics", TOPIC, name), None)


def _name_or_id(topic: Any) -> str:
    return topic.name or str(getattr(topic, "topic_id", ""))


def _deleted_records(request: Any, answer: Any) -> Iterator[Done]:
    answers = {
        (topic.name, one.partition_index): one
        for topic in (answer.topics if answer else ())
        for one in topic.partitions
    }
    asked = {(topic.name, one.partition_index): one.offset for topic in request.topics for one in topic.partitions}
    for (name, shard), offset in asked.items():  # the last offset counts where a shard is named more than once
        found = answers.get((name, shard))
        details: dict[str, int] = {"shard": shard, "before_offset": offset}
        if found is not None:
            details["log_start_offset"] = found.low_watermark
        yield Done(Change("DeleteRecords", TOPIC, name, details), _code(found))


def _created_rules(request: Any, answer: Any) -> Iterator[Done]:
    answers = answer.results if answer is not None else [None] * len(request.creations)
    for asked, found in zip(request.creations, answers, strict=True):
        rule = rule_of(asked)
        change = Change("CreateAcls", rule.resource.type.name, rule.resource.name, rule_details(rule))
        yield Done(change, _code(found))


def _deleted_rules(request: Any, answer: Any) -> Iterator[Done]:
    answers = answer.filter_results if answer is not None else [None] * len(request.filters)
    for asked, found in zip(request.filters, answers, strict=True):
        code = _code(found)
        is_done = found is not None and code == ErrorCode.NONE
        outcome = DeletedRules(tuple(map(_rule, found.matching_acls))) if is_done else None
        for change in deleted_rules(filter_of(asked), outcome):
            yield Done(change, code)


def _rule(found: Any) -> Rule:
    pattern = PatternType(found.pattern_type)
    return Rule(
        Resource(ResourceType(found.resource_type), found.resource_name, pattern),
        found.principal,
        found.host,
        Operation(found.operation),
        Permission(found.permission_type),
    )


def _altered(action: str) -> Describe:
    def described(request: Any, answer: Any) -> Iterator[Done]:
        answers = _by(answer and answer.responses, lambda one: (one.resource_type, one.resource_name))
        for asked in () if request.validate_only else request.resources:
            code = _code(answers.get((asked.resource_type, asked.resource_name)))
            details = {"settings": _settings(asked.configs, code)}
            of_type = _RESOURCES.get(asked.resource_type, "UNKNOWN")
            yield Done(Change(action, of_type, asked.resource_name, details), code)

    return described


def _grown_topics(request: Any, answer: Any) -> Iterator[Done]:
    answers = _by(answer and answer.results, lambda one: one.name)
    for asked in () if request.validate_only else request.topics:
        change = Change("CreatePartitions", TOPIC, asked.name, {"shards": asked.count})
        yield Done(change, _code(answers.get(asked.name)))


def _deleted_groups(request: Any, answer: Any) -> Iterator[Done]:
    answers = _by(answer and answer.results, lambda one: one.group_id)
    for name in dict.fromkeys(request.groups_names):
        yield Done(Change("DeleteGroups", GROUP, name), _code(answers.get(name)))


def _deleted_offsets(request: Any, answer: Any) -> Iterator[Done]:
    answers = {
        (topic.name, one.partition_index): one
        for topic in (answer.topics if answer else ())
        for one in topic.partitions
    }
    of_group = _code(answer)
    for name, shard in {
        (topic.name, one.partition_index): None for topic in request.topics for one in topic.partitions
    }:
        change = Change("OffsetDelete", GROUP, request.group_id, {"topic": name, "shard": shard})
        yield Done(change, of_group or _code(answers.get((name, shard))))


def _altered_quotas(request: Any, answer: Any) -> Iterator[Done]:
    answers = _by(answer and answer.entries, _quota_entity)  # each entity has one, however often it is named
    for asked in request.entries if not request.validate_only else ():
        found = answers.get(_quota_entity(asked))
        changed = {one.key: None if one.remove else str(one.value) for one in asked.ops}
        named = quota_entity(_quota_entity(asked))
        yield Done(Change("AlterClientQuotas", CLIENT_QUOTA, named, {"quotas": changed}), _code(found))


def _quota_entity(entry: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple(dict.fromkeys((one.entity_type, one.entity_name) for one in entry.entity))


def _altered_users(request: Any, answer: Any) -> Iterator[Done]:
    answers = _by(answer and answer.results, lambda one: one.user)
    for action, entries in (
        ("DeleteUserScramCredentials", request.deletions),
        ("SetUserScramCredentials", request.upsertions),
    ):
        for asked in entries:
            change = Change(action, USER, asked.name, {"mechanism": _mechanism(asked.mechanism)})
            yield Done(change, _code(answers.get(asked.name)))


def _mechanism(number: int) -> str:
    try:
        return ScramMechanism(number).mechanism_name
    except ValueError:
        return str(number)


CHANGES: Final[Mapping[int, Describe]] = {
    19: _created_topics,
    20: _deleted_topics,
    21: _deleted_records,
    30: _created_rules,
    31: _deleted_rules,
    33: _altered("AlterConfigs"),
    37: _grown_topics,
    42: _deleted_groups,
    44: _altered("IncrementalAlterConfigs"),
    47: _deleted_offsets,
    49: _altered_quotas,
    51: _altered_users,
}
NOT_CHANGES: Final = frozenset(
    {0, 1, 2, 3, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 22, 23, 29, 32, 35, 36, 48, 50, 60, 68, 69}
)
"""Data, questions, logins, and what members of groups do."""
IN_HANDLER: Final = frozenset({8})
"""OffsetCommit: its handler knows which commits members make, and which others make."""


class ClientAudit:
    """Notes what clients change. Lives on the event loop."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def describes(self, key: int) -> bool:
        return self._audit.is_on and key in CHANGES

    def note(self, connection: ConnectionInfo, header: RequestHeader, request: bytes, answer: Any) -> None:
        """A request of an API that it describes, and what its handler returned; None: it returned nothing."""
        at_ms = self._audit.wall_ms()
        asker = connection.asker
        encoded = answer.data if isinstance(answer, messages.EncodedBody) else None
        key, version = header.api_key, header.api_version

        def lines() -> Iterator[AuditLine]:
            asked = messages.decode_body(key, version, request)
            told = answer if encoded is None else messages.decode_answer(key, version, encoded)
            for change, code in CHANGES[key](asked, told):
                if code not in _DENIED:
                    yield AuditLine(at_ms, asker, change, outcome_of(code), code_name(code))

        self._audit.later(asker, lines, len(request) + len(encoded or b""))


def outcome_of(code: int | None) -> Outcome:
    if code == ErrorCode.NONE:
        return Outcome.DONE
    return Outcome.UNKNOWN if code in (None, ErrorCode.REQUEST_TIMED_OUT) else Outcome.FAILED


def code_name(code: int | None) -> str:
    if code is None or code == ErrorCode.NONE:
        return ""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
