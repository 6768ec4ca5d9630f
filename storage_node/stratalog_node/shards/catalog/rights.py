"""The node's view of rules (ACLs) and SCRAM credentials: what decides a request, and what proves a user.

Lives on the event loop, changed by the catalog alone. While a large change is applied in steps, requests see some of
it: what takes a right away comes first, so that they never see more rights than before it or after it.
Cost: 1 us for a rule that is added or removed, some 700 bytes for each; 5 us for a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.metadata import (
    Change,
    CredentialChanged,
    CredentialDeleted,
    RuleCreated,
    RuleDeleted,
    Snapshot,
)
from stratalog.model.rights import Permission, Principal
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism

_COMPARED_PER_STEP: Final = 2_000


class CatalogRights:
    """Rules and credentials as the newest change that came here says."""

    def __init__(self, *, super_users: frozenset[Principal] = frozenset(), is_open_without_rules: bool = False) -> None:
        self.authorizer = Authorizer(super_users=super_users, is_open_without_rules=is_open_without_rules)
        self._credentials: dict[CredentialName, ScramCredential] = {}

    # Reading ----------------------------------------------------------------------------------------------------
    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._credentials.get(CredentialName(user, mechanism))

    def credential_names(self) -> Iterable[CredentialName]:
        return self._credentials.keys()

    # Following --------------------------------------------------------------------------------------------------
    def load(self, snapshot: Snapshot) -> None:
        """Start from nothing."""
        for rule in snapshot.rules:
            self.authorizer.add(rule)
        self._credentials = {one.name: one.credential for one in snapshot.credentials}

    def apply(self, change: RuleCreated | RuleDeleted | CredentialChanged | CredentialDeleted) -> None:
        match change:
            case RuleCreated(rule):
                self.authorizer.add(rule)
            case RuleDeleted(rule):
                self.authorizer.remove(rule)
            case CredentialChanged(one):
                self._credentials[one.name] = one.credential
            case CredentialDeleted(name):
                self._credentials.pop(name, None)

    def differences(self, snapshot: Snapshot, changes: list[Change]) -> Iterator[None]:
        """Adds what leads from the present state to that of the snapshot, in steps."""
        kept = {one.name for one in snapshot.credentials}
        changes += [CredentialDeleted(name) for name in self._credentials if name not in kept]
        for one in snapshot.credentials:
            if self._credentials.get(one.name) != one.credential:
                changes.append(CredentialChanged(one))
        yield
        rules = set(snapshot.rules)
        yield
        narrowing: list[Change] = []
        widening: list[Change] = []
        for number, rule in enumerate(self.authorizer.rules(), 1):
            if rule not in rules:
                (narrowing if rule.permission is Permission.ALLOW else widening).append(RuleDeleted(rule))
            if number % _COMPARED_PER_STEP == 0:
                yield
        for number, rule in enumerate(snapshot.rules, 1):
            if rule not in self.authorizer:
                (narrowing if rule.permission is Permission.DENY else widening).append(RuleCreated(rule))
            if number % _COMPARED_PER_STEP == 0:
                yield
        changes += [*narrowing, *widening]
