"""What may be asked of the meta service about rules (ACLs), SCRAM credentials and quotas (docs/security-spec.md).

None that gives a right is repeated by itself after a lost answer: the repetition would undo what another revoked
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.model.commands.command import NodeCommand
from stratalog.model.errors import StratalogError
from stratalog.model.quotas import QuotaAlteration
from stratalog.model.rights import Rule, RuleFilter
from stratalog.model.scram import CredentialName, UserCredential

RuleOutcomes: TypeAlias = tuple[Rule | StratalogError, ...]
"""One entry per rule, in order: the rule, which is there now, or why it was refused."""


@dataclass(frozen=True, slots=True)
class CreateRules(NodeCommand[RuleOutcomes]):
    """Keep these rules, in one transaction; each stands or falls alone. One that is there already is answered as
    created. Raises LimitExceeded for too many in one request."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class DeletedRules:
    """What a filter found. A rule that several filters find is in the answer of each."""

    rules: tuple[Rule, ...]


DeletionOutcomes: TypeAlias = tuple[DeletedRules | StratalogError, ...]
"""One entry per filter, in order; an error is that of a filter that says nothing sensible."""


@dataclass(frozen=True, slots=True)
class DeleteRules(NodeCommand[DeletionOutcomes]):
    """Delete the rules that these filters find, in one transaction. Asked again after a lost answer it deletes what
    others created meanwhile, too: in doubt a right ends. Raises LimitExceeded for too many filters or rules found."""

    is_idempotent = True

    filters: tuple[RuleFilter, ...]


CredentialOutcomes: TypeAlias = tuple[StratalogError | None, ...]
"""One entry per alteration: first of `deleted`, then of `put`. None: it was made."""


@dataclass(frozen=True, slots=True)
class AlterCredentials(NodeCommand[CredentialOutcomes]):
    """Delete and put SCRAM credentials, in one transaction. Of a user all alterations are made, or none: then each has
    the same error. Deleting what is not there is NotFound. Raises LimitExceeded for too many in one request."""

    deleted: tuple[CredentialName, ...] = ()
    put: tuple[UserCredential, ...] = ()


QuotaOutcomes: TypeAlias = tuple[StratalogError | None, ...]
"""One entry per alteration, in order. None: it was made."""


@dataclass(frozen=True, slots=True)
class AlterQuotas(NodeCommand[QuotaOutcomes]):
    """Set and remove limits, in one transaction; each entity stands or falls alone. Removing what is not there is no
    error. It is not repeated by itself: another may have changed the limits meanwhile. Raises LimitExceeded for too
    many entities in one request."""

    alterations: tuple[QuotaAlteration, ...]


RightsCommand: TypeAlias = CreateRules | DeleteRules | AlterCredentials | AlterQuotas
RightsResult: TypeAlias = RuleOutcomes | DeletionOutcomes | CredentialOutcomes | QuotaOutcomes
