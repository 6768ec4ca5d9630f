"""Has the cluster keep of a user what its StorageUser says: a password, rules (ACLs), and no others. `user_quotas.py`
plans quotas, which others may set where the object has none, and `user_certificates.py` what is shown in place of a
password.

What is found of the user beside that is removed, and reported if the object did not change: a right that is in no
object is revoked by no object. A deleted object lets go of its name once the meta service shows that neither a
password nor a rule of the user is left, nor a quota of the object; it waits for that as long as the service does not
answer.

With another way to log in a user may get another principal. Only the principal in the status has rules of the object:
they are removed, then the status names the next one, and then that gets its rules. So no other principal is touched,
whenever the operator is killed and whatever is changed meanwhile.

Which password the cluster has is seen by its salt, which follows from the state of the Secret (`specs/user.py`).

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.model.rights import Rule
from stratalog.model.scram import ScramMechanism
from stratalog.model.views.rights_view import CredentialView, salt_digest
from stratalog_operator.plan.actions import (
    AddFinalizer,
    DropFinalizer,
    MakeRules,
    Offer,
    PasswordSource,
    PutPassword,
    RemoveCredentials,
    RemoveRules,
)
from stratalog_operator.plan.declared.user_certificates import UserCertificatePlan, plan_user_certificate
from stratalog_operator.plan.declared.user_quotas import owned_at_first, plan_quotas, plan_removal
from stratalog_operator.plan.observed import Observed, SeenRights, SeenUser, SeenUserSecret, Unread
from stratalog_operator.plan.scope import why_no_time
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, ANNOTATION_ROTATE, FINALIZER
from stratalog_operator.specs.notes import due_by_age
from stratalog_operator.specs.user import (
    SecretOwner,
    has_certificate,
    has_password,
    principal_of,
    salt_of,
    user_name,
    wanted_rules,
)

USER: Final = "StorageUser"


@dataclass(frozen=True, slots=True)
class UserPlan:
    """What is so about one object."""

    offer: Offer
    conflict: str = ""
    """The older object that has the user; empty: this one has it."""
    invalid: str = ""
    """Why what is asked for cannot be, in words."""
    waits: str = ""
    """What is waited for before it can be done."""
    lacks: str = ""
    """What the cluster does not keep of the user yet; empty: all of it."""
    is_known: bool = False
    """The meta service says what it keeps of the user."""
    rules: int = 0
    """That it keeps."""
    rotates_at: str = ""
    """When another password or certificate is due."""
    principal: str = ""
    """Whose rules are those of the object; empty: as its status says."""
    quotas_of: str | None = None
    """The user whose quotas are those of the object. None: as its status says."""


def owners_of_users(seen: Observed) -> dict[str, SeenUser | Unread]:
    """By the name of the user: of the objects that name it the oldest, which has it until it is gone, also while it
    cannot be read."""
    found: dict[str, SeenUser | Unread] = {}
    named: list[tuple[str, SeenUser | Unread]] = [(user_name(one.spec, one.name), one) for one in seen.users]
    named += [(one.user_name or one.name, one) for one in seen.unread if one.kind == USER]
    for name, one in named:
        first = found.setdefault(name, one)
        if (one.created, one.uid) < (first.created, first.uid):
            found[name] = one
    return found


def plan_user(seen: Observed, one: SeenUser, owner: SeenUser | Unread) -> UserPlan:
    """`owner` has the user."""
    older = "" if owner.uid == one.uid else owner.name
    if one.is_deleting:
        return _deleting(seen, one, owns=not older)
    if FINALIZER not in one.finalizers:
        # First by itself: nothing is there yet that would be left behind without it.
        return UserPlan(
            Offer([AddFinalizer(USER, one.name)]),
            conflict=older,
            waits="" if older else "it is being made",
            principal=principal_of(one.spec, one.name),
            quotas_of=None if older else owned_at_first(one),
        )
    if older:
        return UserPlan(Offer(), conflict=older, principal=principal_of(one.spec, one.name))
    rights = None if seen.meta is None else seen.meta.rights
    if rights is None:
        return UserPlan(Offer())
    return _keeping(seen, one, rights)


def _keeping(seen: Observed, one: SeenUser, rights: SeenRights) -> UserPlan:
    offer, secret = Offer(), seen.user_secrets.get(one.name)
    invalid, waits, rotates_at = "", "", ""
    credentials = rights.credentials.get(user_name(one.spec, one.name), ())
    kept: CredentialView | None = None
    certificate = UserCertificatePlan()
    if has_certificate(one.spec):
        certificate = plan_user_certificate(seen, one, secret)
        invalid, waits, rotates_at = certificate.invalid, certificate.waits, certificate.rotates_at
        offer.actions += [] if certificate.action is None else [certificate.action]
    if has_password(one.spec):
        kept = next((known for known in credentials if known.mechanism is ScramMechanism.SCRAM_SHA_512), None)
        rotates_at = _rotates_at(one, secret, seen.now)
        invalid = "" if secret is None else _why_unusable(one, secret)
        waits = "its Secret has not been read yet" if secret is None else ""
        if secret is not None and not invalid:
            action = _password(seen, one, secret, kept, rotates_at)
            offer.actions += [action] if action is not None else []
    # Before a right is given, all others that are not asked for are gone.
    surplus = tuple(known.name for known in credentials if known is not kept)
    if surplus:
        offer.actions.insert(0, RemoveCredentials(one.name, surplus))
    wanted, there = _wanted(one), rights.rules.get(principal_held(one), frozenset())
    is_named = one.status.principal == principal_of(one.spec, one.name)
    missing = wanted - there
    if missing and is_named:
        offer.actions.append(MakeRules(one.name, tuple(sorted(missing))))
    if there - wanted:
        offer.actions.append(RemoveRules(one.name, one.uid, tuple(sorted(there - wanted)), _is_of_others(one)))
    if missing and not is_named:
        waits = waits or "its rules are made once its status names its principal, and a former one has none left"
    quotas = plan_quotas(one, rights, is_reported=_is_of_others(one))
    offer.actions += [] if quotas.action is None else [quotas.action]
    lacks = ["its password"] if has_password(one.spec) and (kept is None or _puts_password(offer)) else []
    lacks += ["its certificate"] if certificate.is_lacking else []
    lacks += [f"{len(missing)} of {len(wanted)} rules"] if missing else []
    lacks += ["its quotas"] if quotas.is_lacking else []
    return UserPlan(
        offer,
        invalid=invalid,
        waits=waits or quotas.waits,
        lacks=" and ".join(lacks),
        is_known=True,
        rules=len(there),
        rotates_at=rotates_at,
        principal=principal_held(one) if there else principal_of(one.spec, one.name),
        quotas_of=quotas.owned_user,
    )


def _puts_password(offer: Offer) -> bool:
    return any(isinstance(found, PutPassword) for found in offer.actions)


def principal_held(one: SeenUser) -> str:
    """Whose rules are those of the object: after a change of how the user logs in the former principal, until it has no
    rules any more."""
    return one.status.principal or principal_of(one.spec, one.name)


def _wanted(one: SeenUser) -> frozenset[Rule]:
    if one.spec.authorization is None:
        return frozenset()
    return wanted_rules(one.spec.authorization.acls, principal_of(one.spec, one.name))


def _is_of_others(one: SeenUser) -> bool:
    """Whether what the object does not have was made by others: the object has not changed since it was
    applied."""
    return one.status.applied_generation in (0, one.generation)


# The password ---------------------------------------------------------------------------------------------------------
def _password(
    seen: Observed, one: SeenUser, secret: SeenUserSecret, kept: CredentialView | None, rotates_at: str
) -> PutPassword | None:
    """None: the cluster has the password that the Secret has, and that is the right one."""
    authentication = one.spec.authentication
    assert authentication is not None, "it has a password"
    given = None if authentication.password is None else authentication.password.value_from.secret_key_ref
    word = one.annotations.get(ANNOTATION_ROTATE, "")[:253]
    is_old = bool(rotates_at and rotates_at <= seen.now) and not why_no_time(seen)
    is_due = bool(word and word != secret.rotated_for) or is_old
    source = PasswordSource.KEPT
    if given is not None:
        source = PasswordSource.KEPT if secret.is_given and secret.is_whole else PasswordSource.GIVEN
    elif not secret.has_password or is_due:
        source = PasswordSource.GENERATED
    known = "" if kept is None else kept.salt_digest
    has_it = known == salt_digest(salt_of(one.uid, secret.uid, secret.version))
    if source is PasswordSource.KEPT and secret.is_whole and has_it:
        return None
    owner = SecretOwner(one.name, one.uid, seen.cluster.name, user_name(one.spec, one.name))
    return PutPassword(owner, source, secret.uid, secret.version, given, word)


def _why_unusable(one: SeenUser, secret: SeenUserSecret) -> str:
    if secret.given_trouble:
        return secret.given_trouble
    if secret.uid and not secret.is_ours:
        return (
            f"Secret {one.name} is there and does not belong to this StorageUser, whose password it would have: delete "
            "that Secret, or choose another name for this object"
        )
    return ""


def _rotates_at(one: SeenUser, secret: SeenUserSecret | None, now: str) -> str:
    """When another password is due by its age; empty: never."""
    authentication = one.spec.authentication
    if authentication is None or authentication.rotate_after_days is None or secret is None or not secret.has_password:
        return ""
    due = due_by_age(secret.rotated_at, authentication.rotate_after_days)
    return now if due is None else due.strftime("%Y-%m-%dT%H:%M:%SZ")


# Deletion -------------------------------------------------------------------------------------------------------------
def _deleting(seen: Observed, one: SeenUser, *, owns: bool) -> UserPlan:
    if FINALIZER not in one.finalizers:
        return UserPlan(Offer())
    if one.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true":
        return _let_go(one, "a person said so by the annotation")
    if not owns:
        return _let_go(one, "another object has the user")
    rights = None if seen.meta is None else seen.meta.rights
    if rights is None:
        return UserPlan(Offer(), waits="the meta service does not answer, and the password of the user may be valid")
    credentials = rights.credentials.get(user_name(one.spec, one.name), ())
    rules = rights.rules.get(principal_held(one), frozenset())
    quotas = plan_removal(one, rights)
    if one.status.quotas_of and rights.quotas is None:
        waits = "the meta service cannot be asked for quotas yet, and those of the user may be there"
    elif not credentials and not rules and quotas is None:
        return _let_go(one, "neither a password nor a rule of the user is left, nor a quota of this object")
    else:
        waits = "what it has in the cluster is removed"
    offer = Offer()
    if credentials:
        offer.actions.append(RemoveCredentials(one.name, tuple(known.name for known in credentials)))
    if rules:
        offer.actions.append(RemoveRules(one.name, one.uid, tuple(sorted(rules)), is_reported=False))
    offer.actions += [] if quotas is None else [quotas]
    return UserPlan(offer, is_known=True, rules=len(rules), waits=waits)


def _let_go(one: SeenUser, why: str) -> UserPlan:
    return UserPlan(Offer([DropFinalizer(USER, one.name, why)]), is_known=True)
