"""Which hashes of tokens the pods of a cluster mount, and why those of its people cannot be had.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog_operator.plan.actions import Offer, PutRoles
from stratalog_operator.plan.observed import Observed


@dataclass(frozen=True, slots=True)
class RolesPlan:
    offer: Offer = field(default_factory=Offer)
    invalid: str = ""
    """Why tokens cannot be used, in words: then the earlier hashes stay."""


def plan_roles(seen: Observed) -> RolesPlan:
    """Nothing without certificates of the parts: their pods mount the tokens themselves."""
    there = seen.roles
    if there is None:
        return RolesPlan()
    offer = Offer() if there.is_published else Offer([PutRoles(there.texts, there.version)])
    return RolesPlan(offer, "; ".join(filter(None, (there.trouble, seen.token_trouble))))
