"""What the metadata hold of rules, SCRAM users and quotas, without any key, as `GET /v1/rights` gives it. Plain
immutable data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from stratalog.model.bounds import Count
from stratalog.model.quotas import EntityQuotas
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName, ScramMechanism, UserCredential


@dataclass(frozen=True, slots=True)
class CredentialView:
    """A credential without its keys. Another salt is another password, or the same one put again."""

    user: str
    mechanism: ScramMechanism
    iterations: Count
    salt_digest: str

    @property
    def name(self) -> CredentialName:
        return CredentialName(self.user, self.mechanism)


@dataclass(frozen=True, slots=True)
class RightsView:
    """`version`: no rule, no credential and no quota has changed since. `is_unchanged`: the reader named this version,
    and has all that it says: then nothing is listed."""

    version: Count
    is_unchanged: bool = False
    rules: tuple[Rule, ...] = ()
    credentials: tuple[CredentialView, ...] = ()
    quotas: tuple[EntityQuotas, ...] | None = None
    """None: nothing is listed, or the service is older and does not list them."""


def view_of(one: UserCredential) -> CredentialView:
    return CredentialView(one.user, one.mechanism, one.credential.iterations, salt_digest(one.credential.salt))


def salt_digest(salt: bytes) -> str:
    """By which a credential is recognised. A salt is public: each login that begins is answered with it."""
    return hashlib.sha256(b"salt " + salt).hexdigest()[:32]
