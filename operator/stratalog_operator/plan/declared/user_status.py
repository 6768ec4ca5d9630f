"""The status of a StorageUser.

Pure. Source: docs/operator.md section 3; docs/kubernetes-security.md.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.plan.declared.users import USER, UserPlan
from stratalog_operator.plan.observed import Observed, SeenUser
from stratalog_operator.plan.scope import Word, cluster_of, complete, is_paused
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge
from stratalog_operator.resources.user import StorageUserStatus
from stratalog_operator.specs.client_security import why_without_effect
from stratalog_operator.specs.user import has_secret, principal_of, user_name

_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_SILENT: Final = "the meta service does not answer"
_OLDER: Final = "the meta service is older than this operator, and cannot be asked for rules: it is rolled first"


def user_status(seen: Observed, one: SeenUser, planned: UserPlan) -> StorageUserStatus:
    before = one.status
    words = complete(USER, _words(seen, one, planned))
    given = {
        "observed_generation": one.generation,
        "conditions": merge(before.conditions, words, one.generation, seen.now),
        "principal": planned.principal or before.principal or principal_of(one.spec, one.name),
        "quotas_of": before.quotas_of if planned.quotas_of is None else planned.quotas_of,
    }
    if not planned.is_known:
        return before.model_copy(update=given)
    secret = seen.user_secrets.get(one.name)
    rotated_at, rotates_at = before.rotated_at, planned.rotates_at or None
    if secret is not None:
        rotated_at = secret.rotated_at or None
    else:
        rotates_at = before.rotates_at
    if not has_secret(one.spec):
        rotated_at = rotates_at = None
    shows_secret = has_secret(one.spec) and not planned.invalid
    is_applied = not planned.offer.actions and given["quotas_of"] == before.quotas_of
    more = {
        "secret": one.name if shows_secret else "",
        "rotated_at": rotated_at,
        "rotates_at": rotates_at,
        "rules": planned.rules,
        "applied_generation": one.generation if is_applied else before.applied_generation,
    }
    return before.model_copy(update={**given, **more})


def _words(seen: Observed, one: SeenUser, planned: UserPlan) -> dict[ConditionType, Word]:
    user = user_name(one.spec, one.name)
    words: dict[ConditionType, Word] = {
        ConditionType.CONFLICT: (_NO, "HasItsUser", ""),
        ConditionType.PROGRESSING: (_NO, "NothingUnderWay", ""),
        ConditionType.RECONCILED: (_YES, "Applied", ""),
        ConditionType.READY: _ready(seen, one, planned),
    }
    if one.is_deleting:
        waits = planned.waits or "it is being deleted"
        words[ConditionType.RECONCILED] = (_NO, "Deleting", waits)
        words[ConditionType.READY] = (_NO, "Deleting", waits)
    elif is_paused(seen):
        words[ConditionType.RECONCILED] = (_NO, "Paused", "nothing is applied until it is resumed")
    elif planned.conflict:
        why = f"StorageUser {planned.conflict} is older and has user {user}: delete one of the two"
        words[ConditionType.CONFLICT] = (_YES, "OlderHasIt", why)
        words[ConditionType.RECONCILED] = (_NO, "Waiting", why)
        words[ConditionType.READY] = (_NO, "Conflict", why)
    elif planned.invalid:
        words[ConditionType.RECONCILED] = (_NO, "InvalidSpec", planned.invalid)
    elif planned.waits or not planned.is_known:
        words[ConditionType.RECONCILED] = (_NO, "Waiting", planned.waits or _silence(seen))
    elif planned.offer.actions:
        words[ConditionType.PROGRESSING] = (_YES, "Changing", "")
    return words


def _silence(seen: Observed) -> str:
    return _SILENT if seen.meta is None else _OLDER


def _ready(seen: Observed, one: SeenUser, planned: UserPlan) -> Word:
    user, authentication = user_name(one.spec, one.name), one.spec.authentication
    if seen.meta is None or seen.meta.rights is None:
        return _UNKNOWN, "MetaUnreachable", _silence(seen)
    if not planned.is_known or planned.lacks:
        return _NO, "NotThere", planned.invalid or planned.waits or f"user {user} lacks {planned.lacks}"
    return _YES, "Kept", why_without_effect(cluster_of(seen), None if authentication is None else authentication.type)
