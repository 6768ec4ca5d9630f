"""What the Secrets of the operator's own authorities hold: read in each pass, checked, and given on without the keys.

A certificate that cannot be read, whose key is another one's, or that no known authority issued counts as not there, so
that it is issued again. An authority that cannot be read is never replaced by itself: its clients would trust nothing
that is shown then. Lives in the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from cryptography import x509

from stratalog.model.errors import NotFound, StratalogError
from stratalog.tls.issuing import CLOCKS_DIFFER
from stratalog.tls.material import TlsMaterial
from stratalog_operator.kube.certificate_files import (
    can_issue,
    certificate_text,
    fingerprint,
    former_texts,
    is_issued_by,
    is_key_of,
    names_of,
    read_certificate,
    trusted_texts,
)
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.secret_texts import text_of
from stratalog_operator.kube.together import together
from stratalog_operator.plan.observed import SeenAuthority, SeenCertificates, SeenIssuer, SeenLeaf
from stratalog_operator.resources.names import ANNOTATION_ROTATED_AT, ANNOTATION_ROTATED_FOR
from stratalog_operator.specs.certificate_secrets import (
    AUTHORITY,
    AUTHORITY_KEY,
    CLIENT_AUTHORITIES,
    ETCD_AUTHORITIES,
    ETCD_CLIENT,
    NEXT,
    NEXT_KEY,
    OF_ETCD,
    OPERATOR,
    authority_secret,
    belongs_to,
    certificate_of,
    clients_authority_secret,
    etcd_authority_secret,
    has_clients_authority,
    holder_of,
    key_of,
    leaves_secret,
    trust_secret,
)
from stratalog_operator.specs.notes import time_of_note
from stratalog_operator.specs.objects import Cluster

_USERS_FOLLOW: Final = "all users of type tls get other certificates"
_ETCD_FOLLOWS: Final = "the members of etcd restart, and answer no one until most of them have the next one"


async def read_certificates(kubernetes: Kubernetes, cluster: Cluster, now: str) -> SeenCertificates:
    """Raises: Unavailable, InvalidRequest where they may not be read."""
    names = [authority_secret(cluster), leaves_secret(cluster), trust_secret(cluster)]
    further = [clients_authority_secret(cluster)] if has_clients_authority(cluster) else []
    further += [etcd_authority_secret(cluster)] if cluster.has_etcd_tls else []
    async with together() as asked:
        reading = [asked.create_task(_secret(kubernetes, cluster.namespace, name)) for name in names + further]
    authority, leaves, trust, *others = (task.result() for task in reading)
    of_others = dict(zip(further, others, strict=True))
    of_etcd = of_others.get(etcd_authority_secret(cluster))
    found = seen_certificates(cluster, authority, leaves, trust, now, of_etcd)
    if has_clients_authority(cluster):
        clients = _further(cluster, of_others[clients_authority_secret(cluster)], _USERS_FOLLOW, now)
        is_trusted = _is_trusted(leaves, CLIENT_AUTHORITIES, of_others[clients_authority_secret(cluster)], clients, now)
        found = replace(found, clients=clients, is_published=found.is_published and is_trusted)
    if cluster.has_etcd_tls:
        etcd = _further(cluster, of_etcd, _ETCD_FOLLOWS, now)
        is_trusted = _is_trusted(leaves, ETCD_AUTHORITIES, of_etcd, etcd, now)
        found = replace(found, etcd=etcd, is_published=found.is_published and is_trusted)
    return found


async def read_own(kubernetes: Kubernetes, cluster: Cluster) -> TlsMaterial | None:
    """What the operator shows to the cluster, and trusts there; None while it has no certificate, or may not read it:
    then the meta service is not asked."""
    return await _read_own(kubernetes, cluster, OPERATOR, AUTHORITY)


async def read_own_of_etcd(kubernetes: Kubernetes, cluster: Cluster) -> TlsMaterial | None:
    """The same for the etcd that it runs."""
    return await _read_own(kubernetes, cluster, ETCD_CLIENT, ETCD_AUTHORITIES)


async def _read_own(kubernetes: Kubernetes, cluster: Cluster, holder: str, trusted: str) -> TlsMaterial | None:
    try:
        secret = await _secret(kubernetes, cluster.namespace, leaves_secret(cluster))
    except StratalogError:
        return None
    if secret is None or not belongs_to(cluster, secret):
        return None
    texts = [text_of(secret, name) for name in (certificate_of(holder), key_of(holder), trusted)]
    chain, key, authorities = ((text or "").encode() for text in texts)
    return TlsMaterial(chain, key, authorities) if chain and key and authorities else None


async def _secret(kubernetes: Kubernetes, namespace: str, name: str) -> Mapping[str, Any] | None:
    try:
        return await kubernetes.ask("GET", path_of("Secret", namespace, name))
    except NotFound:
        return None


def seen_certificates(
    cluster: Cluster,
    authority: Mapping[str, Any] | None,
    leaves: Mapping[str, Any] | None,
    trust: Mapping[str, Any] | None,
    now: str,
    of_etcd: Mapping[str, Any] | None = None,
) -> SeenCertificates:
    versions = SeenCertificates(SeenAuthority(_version(authority)), _version(leaves), _version(trust))
    for one in (authority, leaves, trust):
        if one is not None and not belongs_to(cluster, one):
            name = one["metadata"]["name"]
            trouble = f"Secret {name} is there and does not belong to this StorageCluster: delete it, or rename it"
            return replace(versions, trouble=trouble)
    if authority is None:
        return versions
    seen, issuer = _seen_authority(authority, now), _authority(authority, AUTHORITY, AUTHORITY_KEY)
    if issuer is None:
        trouble = (
            f"Secret {authority_secret(cluster)} has no authority that can be read, with its key: put it back from a "
            "backup; or delete the Secret, and give all clients the ca.crt of the one that is made then"
        )
        return replace(versions, trouble=trouble)
    wanted = trusted_texts(authority, datetime.fromisoformat(now))
    is_published = all(one is not None and text_of(one, AUTHORITY) == wanted for one in (leaves, trust))
    return replace(
        versions,
        authority=seen,
        leaves={} if leaves is None else _leaves(leaves, issuer, _issuer_of_etcd(of_etcd)),
        is_published=is_published,
    )


def _further(cluster: Cluster, authority: Mapping[str, Any] | None, follows: str, now: str) -> SeenAuthority:
    """The authority of clients or of etcd, which is never replaced by itself either. `follows`: what a person gets who
    deletes it. What it cannot issue is all that its trouble stops."""
    if authority is None:
        return SeenAuthority()
    seen, name = _seen_authority(authority, now), authority["metadata"]["name"]
    trouble = ""
    if not belongs_to(cluster, authority):
        trouble = f"Secret {name} is there and does not belong to this StorageCluster: delete it, or rename it"
    elif seen.issuer is None:
        trouble = (
            f"Secret {name} has no authority that can be read, with its key: put it back from a backup; or delete the "
            f"Secret, and {follows}"
        )
    return replace(seen, trouble=trouble)


def _is_trusted(
    leaves: Mapping[str, Any] | None, key: str, secret: Mapping[str, Any] | None, seen: SeenAuthority, now: str
) -> bool:
    """Whether what is given to the pods has all authorities that are to be trusted; one that cannot be used changes
    nothing of it."""
    if secret is None:
        return False
    wanted = trusted_texts(secret, datetime.fromisoformat(now)) if not seen.trouble else None
    return wanted is None or (leaves is not None and text_of(leaves, key) == wanted)


def _seen_authority(secret: Mapping[str, Any], now: str) -> SeenAuthority:
    issuer, successor = _authority(secret, AUTHORITY, AUTHORITY_KEY), _authority(secret, NEXT, NEXT_KEY)
    notes = secret["metadata"].get("annotations") or {}
    is_any_next = any(key in (secret.get("data") or {}) for key in (NEXT, NEXT_KEY))
    return SeenAuthority(
        _version(secret),
        issuer=None if issuer is None else _issuer(issuer),
        next_issuer=None if successor is None else _issuer(successor, _trusted_since(successor, notes, now)),
        is_next_damaged=is_any_next and successor is None,
        former=len(former_texts(secret, datetime.fromisoformat(now))),
        rotated_for=notes.get(ANNOTATION_ROTATED_FOR, ""),
    )


def _trusted_since(successor: x509.Certificate, notes: Mapping[str, str], now: str) -> str:
    """As the note says, which others may have changed: never before the certificate was made, and never later than
    now. Without a note that can be so, since it was made."""
    made = _text(successor.not_valid_before_utc + CLOCKS_DIFFER)
    noted = time_of_note(notes.get(ANNOTATION_ROTATED_AT, ""))
    text = "" if noted is None else _text(noted)
    return text if made <= text <= now else made


def _version(secret: Mapping[str, Any] | None) -> str:
    return "" if secret is None else str(secret["metadata"]["resourceVersion"])


def _authority(secret: Mapping[str, Any], certificate: str, key: str) -> x509.Certificate | None:
    found, its_key = _certificate(secret, certificate), text_of(secret, key)
    is_whole = found is not None and its_key is not None and is_key_of(its_key, found) and can_issue(found)
    return found if is_whole else None


def _certificate(secret: Mapping[str, Any], key: str) -> x509.Certificate | None:
    text = text_of(secret, key)
    try:
        return None if text is None else read_certificate(text)
    except ValueError:
        return None


def _issuer(certificate: x509.Certificate, added_at: str = "") -> SeenIssuer:
    ends = _text(certificate.not_valid_after_utc)
    begins = _text(certificate.not_valid_before_utc)
    return SeenIssuer(fingerprint(certificate), ends, added_at, certificate_text(certificate), begins)


def _issuer_of_etcd(secret: Mapping[str, Any] | None) -> x509.Certificate | None:
    return None if secret is None else _authority(secret, AUTHORITY, AUTHORITY_KEY)


def _leaves(
    secret: Mapping[str, Any], issuer: x509.Certificate, of_etcd: x509.Certificate | None
) -> dict[str, SeenLeaf]:
    found: dict[str, SeenLeaf] = {}
    for key in secret.get("data") or {}:
        holder = holder_of(key)
        if holder is None:
            continue
        certificate, its_key = _certificate(secret, certificate_of(holder)), text_of(secret, key_of(holder))
        if certificate is None or its_key is None or not is_key_of(its_key, certificate):
            found[holder] = SeenLeaf("", _text(datetime(1970, 1, 1, tzinfo=UTC)), frozenset())
            continue
        expected = of_etcd if holder in OF_ETCD else issuer
        by = fingerprint(expected) if expected is not None and is_issued_by(certificate, expected) else ""
        times = (_text(certificate.not_valid_after_utc), _text(certificate.not_valid_before_utc))
        found[holder] = SeenLeaf(by, times[0], names_of(certificate), times[1])
    return found


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
