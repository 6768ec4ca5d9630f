"""Which certificate a StorageUser of type `tls` has in its Secret, and when it gets another one.

The authority of clients issues it, once nodes have been given that authority (`certificates.py`). An earlier one stays
valid until it ends: there is no revocation list. Deletion takes the rules of the user away, and so all that the
certificate allows.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from stratalog_operator.plan.actions import PutCertificate
from stratalog_operator.plan.certificates import is_early, is_old, proves_nothing
from stratalog_operator.plan.observed import Observed, SeenAuthority, SeenUser, SeenUserSecret
from stratalog_operator.plan.scope import cluster_of, why_no_time
from stratalog_operator.resources.names import ANNOTATION_ROTATE
from stratalog_operator.specs.certificate_secrets import has_clients_authority
from stratalog_operator.specs.notes import due_by_age
from stratalog_operator.specs.user import SecretOwner, quota_user, user_name

_COMMON_NAME: Final = re.compile(r"[A-Za-z0-9._@:/-]{1,64}")
"""Written in a subject as it is: other characters would be escaped there, and the principal would be another one."""


@dataclass(frozen=True, slots=True)
class UserCertificatePlan:
    action: PutCertificate | None = None
    is_lacking: bool = False
    """The Secret does not have the certificate that it is to have."""
    invalid: str = ""
    waits: str = ""
    rotates_at: str = ""
    """When another one is due."""


def plan_user_certificate(seen: Observed, one: SeenUser, secret: SeenUserSecret | None) -> UserCertificatePlan:
    """`secret`: None while it has not been read."""
    cluster, user, certificates = cluster_of(seen), user_name(one.spec, one.name), seen.certificates
    if not has_clients_authority(cluster):
        return _invalid(
            f"type tls needs a listener of cluster {cluster.name} with authentication tls, and the operator's own "
            "authority (no tls.certificateSecretRef): with certificates from elsewhere use tls-external"
        )
    if _COMMON_NAME.fullmatch(user) is None:
        return _invalid(
            f"type tls: user {user:.80} cannot be the common name of a certificate, which has 1 to 64 letters, digits, "
            "or . _ @ : / -: choose another userName"
        )
    clients = None if certificates is None else certificates.clients
    trouble = "" if certificates is None or clients is None else certificates.trouble or clients.trouble
    if certificates is None or clients is None or trouble or not certificates.is_published:
        is_lacking = secret is not None and secret.certificate is None
        return UserCertificatePlan(
            is_lacking=is_lacking, waits=trouble or "the authority of clients is given to the nodes first"
        )
    if waits := why_no_time(seen):
        return UserCertificatePlan(is_lacking=secret is not None and secret.certificate is None, waits=waits)
    if secret is None:
        return UserCertificatePlan(waits="its Secret has not been read yet")
    if secret.uid and not secret.is_ours:
        return _invalid(
            f"Secret {one.name} is there and does not belong to this StorageUser, whose certificate it would have: "
            "delete that Secret, or choose another name for this object"
        )
    return _issuing(seen, one, secret, clients)


def _issuing(seen: Observed, one: SeenUser, secret: SeenUserSecret, clients: SeenAuthority) -> UserCertificatePlan:
    issuer, kept, cluster = clients.issuer, secret.certificate, cluster_of(seen)
    assert issuer is not None, "it issues"
    word = one.annotations.get(ANNOTATION_ROTATE, "")[:253]
    now = datetime.fromisoformat(seen.now)
    is_right = (
        kept is not None
        and kept.issuer == issuer.fingerprint
        and kept.subject == quota_user(one.spec, one.name)
        and not is_early(kept.not_before, now)
    )
    rotates_at = _rotates_at(seen, one, secret) if is_right else ""
    is_due = (rotates_at != "" and rotates_at <= seen.now) or bool(word and word != secret.rotated_for)
    if is_right and not is_due:
        return UserCertificatePlan(rotates_at=rotates_at)
    if proves_nothing(issuer, now):
        return UserCertificatePlan(is_lacking=not is_right, waits="the authority of clients is not valid now")
    owner = SecretOwner(one.name, one.uid, cluster.name, user_name(one.spec, one.name))
    action = PutCertificate(owner, secret.uid, secret.version, clients.version, word)
    return UserCertificatePlan(action, is_lacking=not is_right, rotates_at=rotates_at)


def _rotates_at(seen: Observed, one: SeenUser, secret: SeenUserSecret) -> str:
    """Before its end, as certificates of nodes are; or by its age, if the object says so. Empty: its authority ends as
    soon."""
    kept, authentication = secret.certificate, one.spec.authentication
    clients = None if seen.certificates is None else seen.certificates.clients
    assert kept is not None and authentication is not None and clients is not None and clients.issuer is not None
    given, now = cluster_of(seen).spec.own_authority, datetime.fromisoformat(seen.now)
    early = datetime.fromisoformat(kept.not_after) - timedelta(days=given.certificate_renewal_days)
    due = [early] if early > now or is_old(kept.not_after, clients.issuer, given, now) else []
    if authentication.rotate_after_days is not None:
        due.append(due_by_age(secret.rotated_at, authentication.rotate_after_days) or now)
    return min(due).strftime("%Y-%m-%dT%H:%M:%SZ") if due else ""


def _invalid(why: str) -> UserCertificatePlan:
    return UserCertificatePlan(is_lacking=True, invalid=why)
