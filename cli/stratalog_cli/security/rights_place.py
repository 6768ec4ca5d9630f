"""Where commands ask for rules and users, and change them: a Kafka listener, or the meta service.

A Kafka listener is used unless only the meta service is named, because a client has logged in there. Through the meta
service the first user of a cluster is created: no user can log in before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from stratalog.connect.brokers import parse, require_broker
from stratalog.connect.listener import ListenerConnection
from stratalog.machines.rights.authorizer import is_found
from stratalog.machines.sasl.scram import credential_from
from stratalog.model.commands.rights_commands import AlterCredentials, CreateRules, DeletedRules, DeleteRules
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.model.rights import Rule, RuleFilter
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.meta_question import ask_meta
from stratalog_cli.connect.target_address import Target, bootstrap_target, meta_target, refuse_guess
from stratalog_cli.security.passwords import SaltedPassword
from stratalog_cli.security.rights_over_kafka import RightsOverKafka
from stratalog_cli.security.user_mechanism import UserMechanism
from stratalog_cli.terminal.say import say

_METADATA: Final = 3
_METADATA_VERSION: Final = 5
"""With the id of the cluster; every broker that is still in use has it."""


class RightsPlace(Protocol):
    """Each call is one request, or a few. Raises: what the other side says."""

    def rules(self, wanted: RuleFilter) -> list[Rule]: ...

    def create(self, rules: Sequence[Rule]) -> list[StratalogError | None]:
        """What became of each, in order; None: it is there now."""

    def delete(self, filters: Sequence[RuleFilter]) -> list[Rule]:
        """Those that were deleted."""

    def users(self, name: str | None = None) -> list[UserMechanism]:
        """In order of their names."""

    def put(self, user: str, password: SaltedPassword) -> None:
        """In place of an earlier one of that mechanism."""

    def drop(self, names: Sequence[CredentialName]) -> None:
        """Raises: NotFound."""

    def missing_topics(self, names: Sequence[str]) -> list[str]:
        """Those of them that do not exist; none that the user may not see."""


class _OverMeta:
    def __init__(self, meta: str | None, *, is_write: bool) -> None:
        self._meta = meta
        self._is_write = is_write

    def rules(self, wanted: RuleFilter) -> list[Rule]:
        found = ask_meta(self._meta, lambda client: client.rights())
        return [rule for rule in found.rules if is_found(wanted, rule)]

    def create(self, rules: Sequence[Rule]) -> list[StratalogError | None]:
        outcomes = ask_meta(
            self._meta, lambda client: client.perform(CreateRules(tuple(rules))), is_write=self._is_write
        )
        return [one if isinstance(one, StratalogError) else None for one in outcomes]

    def delete(self, filters: Sequence[RuleFilter]) -> list[Rule]:
        command = DeleteRules(tuple(filters))
        found: dict[Rule, None] = {}
        for one in ask_meta(self._meta, lambda client: client.perform(command), is_write=self._is_write):
            if not isinstance(one, DeletedRules):
                raise one
            found.update(dict.fromkeys(one.rules))
        return list(found)

    def users(self, name: str | None = None) -> list[UserMechanism]:
        found = ask_meta(self._meta, lambda client: client.rights()).credentials
        users = (UserMechanism(one.user, one.mechanism, one.iterations) for one in found)
        return sorted(one for one in users if name is None or one.user == name)

    def put(self, user: str, password: SaltedPassword) -> None:
        kept = credential_from(password.mechanism, password.salted, password.salt, password.iterations)
        self._alter(AlterCredentials(put=(UserCredential(user, password.mechanism, kept),)))

    def drop(self, names: Sequence[CredentialName]) -> None:
        self._alter(AlterCredentials(deleted=tuple(names)))

    def missing_topics(self, names: Sequence[str]) -> list[str]:
        """Not looked up: only the whole of the metadata would tell."""
        return []

    def _alter(self, command: AlterCredentials) -> None:
        for error in ask_meta(self._meta, lambda client: client.perform(command), is_write=self._is_write):
            if error is not None:
                raise error


def rights_place(bootstrap: str | None, meta: str | None, *, is_write: bool) -> RightsPlace:
    """Says where a write goes. Raises: InvalidRequest where nothing names a place to write to; Conflict for another
    cluster than that of the context; what the connection raises."""
    if is_over_meta(bootstrap, meta):
        return _OverMeta(meta, is_write=is_write)
    return RightsOverKafka(listener_connection(bootstrap, is_write=is_write))


def is_over_meta(bootstrap: str | None, meta: str | None) -> bool:
    """Raises: InvalidRequest where nothing names a place."""
    return bootstrap is None and (meta is not None or not _has_listener())


def listener_connection(bootstrap: str | None, *, is_write: bool) -> ListenerConnection:
    """Says where a write goes. Raises: as `rights_place`."""
    asked = bootstrap_target(bootstrap)
    addresses = [parse(one) for one in asked.addresses.split(",") if one.strip()]
    if not addresses:
        raise InvalidRequest("no bootstrap address: expected HOST:PORT, or several separated by commas")
    settings = asked.client_settings
    connection = ListenerConnection(*require_broker(addresses, settings), settings)
    _report_place(asked, connection, is_write=is_write)
    return connection


def _has_listener() -> bool:
    """Whether the context names one, or nothing names anything."""
    try:
        return bootstrap_target(None) is not None
    except InvalidRequest:
        meta_target(None)  # raises where it names neither
        return False


def _report_place(asked: Target, connection: ListenerConnection, *, is_write: bool) -> None:
    answer = connection.ask(_METADATA, _METADATA_VERSION, topics=(), allow_auto_topic_creation=False)
    cluster_id, where = answer.cluster_id or "?", connection.where
    cluster = f"cluster {printable(cluster_id)}"
    if is_write and asked.is_guessed:
        raise refuse_guess(cluster, "bootstrap", where)
    asked.require_cluster(cluster_id, where)
    if is_write:
        by = f" as {connection.settings.user}" if connection.settings.user else ""
        say(f"to {cluster} at {where}{by}{asked.by_context}", to_stderr=True)
    elif asked.is_guessed:
        say(f"asked {cluster} at {where}: nothing names another (`stratalog context add`)", to_stderr=True)
