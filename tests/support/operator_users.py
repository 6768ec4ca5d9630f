"""Secrets of users, and what a small meta service keeps of users, for the operator's plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from stratalog.machines.quotas.alterations import NO_LIMITS, altered
from stratalog.model.quotas import QuotaAlteration, QuotaEntity, QuotaLimits
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName, ScramMechanism
from stratalog.model.views.rights_view import CredentialView, salt_digest
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Seen, SeenRights, SeenUser, SeenUserSecret
from stratalog_operator.resources.user import StorageUserSpec, StorageUserStatus
from stratalog_operator.specs.user import salt_of


@dataclass(frozen=True)
class SmallSecret:
    uid: str
    version: int
    password: str
    owner: str
    """UID of the StorageUser; empty: another program's."""
    rotated_at: str = ""
    rotated_for: str = ""


@dataclass
class SmallUsers:
    secrets: dict[str, SmallSecret] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    """Passwords that people chose, by the name of their Secret."""
    rules: set[Rule] = field(default_factory=set)
    credentials: dict[CredentialName, str] = field(default_factory=dict)
    """The salts' digests."""
    logs_in_with: dict[str, str] = field(default_factory=dict)
    """By user: the password that the cluster takes."""
    numbers: int = 0
    quotas: dict[str, QuotaLimits] = field(default_factory=dict)
    """By user."""

    def __copy__(self) -> SmallUsers:
        made = (dict(self.secrets), dict(self.given), set(self.rules), dict(self.credentials), dict(self.logs_in_with))
        return SmallUsers(*made, self.numbers, dict(self.quotas))

    def rights(self) -> SeenRights:
        rules: dict[str, frozenset[Rule]] = {}
        for rule in self.rules:
            rules[rule.principal] = rules.get(rule.principal, frozenset()) | {rule}
        credentials: dict[str, tuple[CredentialView, ...]] = {}
        for name, digest in self.credentials.items():
            view = CredentialView(name.user, name.mechanism, 4096, digest)
            credentials[name.user] = (*credentials.get(name.user, ()), view)
        return SeenRights(0, rules, credentials, dict(self.quotas))

    def seen(self, one: SeenUser) -> SeenUserSecret:
        authentication = one.spec.authentication
        chosen = None if authentication is None else authentication.password
        given = None if chosen is None else self.given.get(chosen.value_from.secret_key_ref.name)
        trouble = "the Secret with the password is not there" if chosen is not None and given is None else ""
        secret = self.secrets.get(one.name)
        if secret is None:
            return SeenUserSecret(is_given=False, given_trouble=trouble)
        return SeenUserSecret(
            secret.uid,
            str(secret.version),
            is_ours=secret.owner == one.uid,
            has_password=bool(secret.password),
            is_whole=bool(secret.password),
            rotated_at=secret.rotated_at,
            rotated_for=secret.rotated_for,
            is_given=given is None or given == secret.password,
            given_trouble=trouble,
        )

    def do(
        self,
        action: act.MakeRules | act.RemoveRules | act.PutPassword | act.RemoveCredentials | act.PutQuotas,
        now: str,
    ) -> None:
        match action:
            case act.MakeRules(_, rules):
                self.rules |= set(rules)
            case act.RemoveRules(_, _, rules):
                assert set(rules) <= self.rules, f"removed, and not there: {rules}"
                self.rules -= set(rules)
            case act.RemoveCredentials(_, names):
                for name in names:
                    self.credentials.pop(name, None)
                    self.logs_in_with.pop(name.user, None)
            case act.PutPassword():
                self._put(action, now)
            case act.PutQuotas(_, _, user, changes):
                limits = altered(self.quotas.pop(user, NO_LIMITS), QuotaAlteration(QuotaEntity(user), changes))
                if limits != NO_LIMITS:
                    self.quotas[user] = limits

    def _put(self, action: act.PutPassword, now: str) -> None:
        owner = action.owner
        secret = self.secrets.get(owner.name)
        seen = ("", "") if secret is None else (secret.uid, str(secret.version))
        assert seen == (action.secret_uid, action.secret_version), "nothing else writes it in this world"
        self.numbers += 1
        password = f"password-{self.numbers}"
        if action.source is act.PasswordSource.GIVEN:
            assert action.given is not None
            password = self.given[action.given.name]
        if secret is None:
            secret = SmallSecret(f"secret-{self.numbers}", self.numbers, password, owner.uid, now, action.word)
        elif action.source is act.PasswordSource.KEPT:
            password = secret.password
        else:
            secret = replace(secret, version=self.numbers, password=password, rotated_at=now, rotated_for=action.word)
        self.secrets[owner.name] = secret
        name = CredentialName(owner.user, ScramMechanism.SCRAM_SHA_512)
        self.credentials[name] = salt_digest(salt_of(owner.uid, secret.uid, str(secret.version)))
        self.logs_in_with[owner.user] = password

    def edit_secret(self, name: str, **changes: Any) -> None:
        self.numbers += 1
        self.secrets[name] = replace(self.secrets[name], version=self.numbers, **changes)


def storage_user(name: str = "alice", created: int = 1, **spec: Any) -> SeenUser:
    """With a generated password, unless `spec` says otherwise."""
    given = {"clusterRef": "main", "authentication": {"type": "scram-sha-512"}, **spec}
    given = {key: value for key, value in given.items() if value is not None}
    at = f"2013-01-01T00:00:{created:02}Z"
    return Seen(name, f"uid-of-{name}", StorageUserSpec.model_validate(given), StorageUserStatus(), created=at)


def acl(name: str = "orders", *operations: str, **more: Any) -> dict[str, Any]:
    """A rule about a topic, as in YAML."""
    resource = {"type": "topic", "name": name, **more.pop("resource", {})}
    return {"resource": resource, "operations": list(operations or ("Read",)), **more}


def may(*acls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "simple", "acls": list(acls)}
