"""Has the cluster keep the quotas that a StorageUser has, and removes none that the object does not own.

`status.quotasOf` names the user whose quotas are those of the object. It is written before the first quota is set, and
becomes empty once none is left: so whatever the object set is found again, whenever the operator is killed. A user
without `spec.quotas` keeps those that others set. An object with `spec.quotas` owns all limits of its user; limits of
that user with a client id belong to another entity, and are never touched.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.machines.quotas.alterations import NO_LIMITS
from stratalog.model.quotas import QuotaChange, QuotaKey, QuotaLimits
from stratalog_operator.plan.actions import PutQuotas
from stratalog_operator.plan.observed import SeenRights, SeenUser
from stratalog_operator.specs.user import quota_user, wanted_limits

_OLDER: Final = "the meta service is older than this operator, and cannot be asked for quotas: it is rolled first"


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """What is so about the quotas of one object."""

    owned_user: str = ""
    """For `status.quotasOf`."""
    action: PutQuotas | None = None
    is_lacking: bool = False
    """The cluster does not keep those of the object yet."""
    waits: str = ""
    """What is waited for before they can be set or removed."""


def owned_at_first(one: SeenUser) -> str:
    """For the status of an object that has set nothing yet."""
    return one.status.quotas_of or (quota_user(one.spec, one.name) if one.spec.quotas is not None else "")


def plan_quotas(one: SeenUser, rights: SeenRights, *, is_reported: bool) -> QuotaPlan:
    """`is_reported`: the object has not changed since it was applied. What differs was set by others."""
    owned, wanted_user = one.status.quotas_of, "" if one.spec.quotas is None else quota_user(one.spec, one.name)
    if not owned and not wanted_user:
        return QuotaPlan()
    if rights.quotas is None:
        return QuotaPlan(owned, is_lacking=bool(wanted_user), waits=_OLDER)
    if owned != wanted_user:
        removal = plan_removal(one, rights)
        if removal is not None:
            return QuotaPlan(owned, removal, is_lacking=bool(wanted_user))
        waits = "its quotas are set once its status says whose they are" if wanted_user else ""
        return QuotaPlan(wanted_user, is_lacking=bool(wanted_user), waits=waits)
    there, wanted = rights.quotas.get(owned, NO_LIMITS), wanted_limits(one.spec)
    if there == wanted:
        return QuotaPlan(owned)
    changes = tuple(QuotaChange(key, wanted.of(key)) for key in QuotaKey if wanted.of(key) != there.of(key))
    return QuotaPlan(owned, PutQuotas(one.name, one.uid, owned, changes, there, is_reported), is_lacking=True)


def plan_removal(one: SeenUser, rights: SeenRights) -> PutQuotas | None:
    """Of all quotas that the object owns. None: there are none."""
    owned = one.status.quotas_of
    there = NO_LIMITS if not owned or rights.quotas is None else rights.quotas.get(owned, NO_LIMITS)
    if there == NO_LIMITS:
        return None
    return PutQuotas(one.name, one.uid, owned, _removed(there), there, is_reported=False)


def _removed(limits: QuotaLimits) -> tuple[QuotaChange, ...]:
    return tuple(QuotaChange(key, None) for key in QuotaKey if limits.of(key) is not None)
