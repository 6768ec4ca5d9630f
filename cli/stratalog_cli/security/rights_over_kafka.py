"""Rules and SCRAM users over a Kafka listener, as `kafka-acls.sh` and `kafka-configs.sh` ask for them.

An answer's code becomes one of Stratalog's errors, which says what the listener or the user lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from stratalog.connect.listener import ListenerConnection
from stratalog.connect.missing_right import Right, missing_right
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import InvalidRequest, NotFound, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import CredentialName, ScramMechanism
from stratalog.telemetry.printable import printable
from stratalog_cli.security.passwords import SaltedPassword
from stratalog_cli.security.user_mechanism import UserMechanism

_DESCRIBE_RULES, _CREATE_RULES, _DELETE_RULES = 29, 30, 31
_DESCRIBE_USERS, _ALTER_USERS = 50, 51
_METADATA, _METADATA_VERSION = 3, 5
_NEWEST_OF_RULES: Final = 3
"""The first with resources of type USER. Older brokers have an earlier one."""
_UNKNOWN: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)
_LATER: Final = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class RightsOverKafka:
    """The caller closes the connection."""

    def __init__(self, connection: ListenerConnection) -> None:
        self._connection = connection

    def rules(self, wanted: RuleFilter) -> list[Rule]:
        version = self._version_of_rules(_DESCRIBE_RULES)
        answer = self._ask(_DESCRIBE_RULES, version, is_write=False, **_filter_fields(wanted))
        self._require(answer.error_code, answer.error_message, Operation.DESCRIBE)
        return [_rule(one, entry) for one in answer.resources for entry in one.acls]

    def create(self, rules: Sequence[Rule]) -> list[StratalogError | None]:
        """What became of each, in order; None: it is there now."""
        version = self._version_of_rules(_CREATE_RULES)
        answer = self._ask(_CREATE_RULES, version, is_write=True, creations=[_creation_fields(one) for one in rules])
        return [self._error(one.error_code, one.error_message, Operation.ALTER) for one in answer.results]

    def delete(self, filters: Sequence[RuleFilter]) -> list[Rule]:
        """Those that were deleted."""
        version = self._version_of_rules(_DELETE_RULES)
        answer = self._ask(_DELETE_RULES, version, is_write=True, filters=[_filter_fields(one) for one in filters])
        found: dict[Rule, None] = {}
        for one in answer.filter_results:
            self._require(one.error_code, one.error_message, Operation.ALTER)
            for entry in one.matching_acls:
                self._require(entry.error_code, entry.error_message, Operation.ALTER)
                found[_rule(entry, entry)] = None
        return list(found)

    def users(self, name: str | None = None) -> list[UserMechanism]:
        """All, or the credentials of one user."""
        wanted = None if name is None else [{"name": name}]
        answer = self._ask(_DESCRIBE_USERS, 0, users=wanted)
        self._require(answer.error_code, answer.error_message, Operation.DESCRIBE)
        found = []
        for one in answer.results:
            if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            self._require(one.error_code, one.error_message, Operation.DESCRIBE)
            found += [
                UserMechanism(one.user, ScramMechanism(info.mechanism), info.iterations)
                for info in one.credential_infos
                if info.mechanism in list(ScramMechanism)
            ]
        return sorted(found)

    def put(self, user: str, password: SaltedPassword) -> None:
        change = {
            "name": user,
            "mechanism": int(password.mechanism),
            "iterations": password.iterations,
            "salt": password.salt,
            "salted_password": password.salted,
        }
        self._alter(deletions=[], upsertions=[change])

    def drop(self, names: Iterable[CredentialName]) -> None:
        """One mechanism of a user at a time: Kafka refuses a request that names a user twice."""
        for one in names:
            gone = [{"name": one.user, "mechanism": int(one.mechanism)}]
            self._alter(deletions=gone, upsertions=[])

    def missing_topics(self, names: Sequence[str]) -> list[str]:
        asked = [{"name": name} for name in names]
        answer = self._ask(_METADATA, _METADATA_VERSION, topics=asked, allow_auto_topic_creation=False)
        return [one.name for one in answer.topics if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    def _alter(self, **changes: object) -> None:
        answer = self._ask(_ALTER_USERS, 0, is_write=True, **changes)
        for one in answer.results:
            if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                raise NotFound(f"user {one.user!r:.80} is not there: `stratalog users list` shows all")
            self._require(one.error_code, one.error_message, Operation.ALTER)

    # Asking -------------------------------------------------------------------------------------------------------
    def _ask(self, api_key: int, version: int, *, is_write: bool = False, **fields: object) -> Any:
        if api_key not in self._connection.versions:
            raise Unavailable(f"{self._connection.where} does not serve this (API key {api_key})")
        return self._connection.ask(api_key, version, is_write=is_write, **fields)

    def _version_of_rules(self, api_key: int) -> int:
        return min(_NEWEST_OF_RULES, self._connection.versions.get(api_key, (0, _NEWEST_OF_RULES))[1])

    def _require(self, code: int, message: str | None, operation: Operation) -> None:
        error = self._error(code, message, operation)
        if error is not None:
            raise error

    def _error(self, code: int, message: str | None, operation: Operation) -> StratalogError | None:
        return error_of(self._connection, code, message, operation)


def error_of(
    connection: ListenerConnection, code: int, message: str | None, operation: Operation
) -> StratalogError | None:
    """What an answer's code means; None: it was done. `operation` is what it needs of the cluster."""
    where, said = connection.where, printable(message or "")
    if code == ErrorCode.NONE:
        return None
    if code == ErrorCode.SECURITY_DISABLED:
        return InvalidRequest(f"{where} keeps no rules: set authorizer.class.name=stratalog on all nodes")
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return missing_right(connection.settings, Right(operation, ResourceType.CLUSTER), where)
    name = _name_of(code)
    if code in _UNKNOWN:
        return OutcomeUnknown(f"{where}: {said or name}: list what is there before you try again")
    if code in _LATER:
        return Unavailable(f"{where}: {said or name}: try again")
    return InvalidRequest(f"{where} refuses: {said or name}")


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {int(code)}"


def _rule(resource: Any, entry: Any) -> Rule:
    return Rule(
        Resource(ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)),
        entry.principal,
        entry.host,
        Operation(entry.operation),
        Permission(entry.permission_type),
    )


def _filter_fields(wanted: RuleFilter) -> dict[str, object]:
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": int(wanted.pattern),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def _creation_fields(rule: Rule) -> dict[str, object]:
    return {
        "resource_type": int(rule.resource.type),
        "resource_name": rule.resource.name,
        "resource_pattern_type": int(rule.resource.pattern),
        "principal": rule.principal,
        "host": rule.host,
        "operation": int(rule.operation),
        "permission_type": int(rule.permission),
    }
