"""What the Secrets of the operator's own authorities hold: read in each pass, checked, and given on without the keys.

A certificate that cannot be read, whose key is another one's, or that no known authority issued counts as not there, so
that it is issued again. An authority that cannot be read is never replaced by itself: its clients would trust nothing
that is shown then. Lives in the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from stratalog.model.errors import NotFound, StratalogError
from stratalog.tls.material import TlsMaterial
from stratalog_operator.kube.certificate_files import (
    certificate_text,
    fingerprint,
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
    NEXT,
    NEXT_KEY,
    OPERATOR,
    authority_secret,
    certificate_of,
    clients_authority_secret,
    has_clients_authority,
    holder_of,
    key_of,
    leaves_secret,
    trust_secret,
)
from stratalog_operator.specs.objects import Cluster


async def read_certificates(kubernetes: Kubernetes, cluster: Cluster, now: str) -> SeenCertificates:
    """Raises: Unavailable, InvalidRequest where they may not be read."""
    names = [authority_secret(cluster), leaves_secret(cluster), trust_secret(cluster)]
    names += [clients_authority_secret(cluster)] if has_clients_authority(cluster) else []
    async with together() as asked:
        reading = [asked.create_task(_secret(kubernetes, cluster.namespace, name)) for name in names]
    authority, leaves, trust, *of_clients = (task.result() for task in reading)
    found = seen_certificates(cluster, authority, leaves, trust, now)
    return _with_clients(cluster, found, leaves, of_clients[0], now) if of_clients else found


async def read_own(kubernetes: Kubernetes, cluster: Cluster) -> TlsMaterial | None:
    """What the operator shows to the cluster, and trusts there; None while it has no certificate, or may not read it:
    then the meta service is not asked."""
    try:
        secret = await _secret(kubernetes, cluster.namespace, leaves_secret(cluster))
    except StratalogError:
        return None
    if secret is None or not _is_of(cluster, secret):
        return None
    texts = [text_of(secret, name) for name in (certificate_of(OPERATOR), key_of(OPERATOR), AUTHORITY)]
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
) -> SeenCertificates:
    versions = SeenCertificates(SeenAuthority(_version(authority)), _version(leaves), _version(trust))
    for one in (authority, leaves, trust):
        if one is not None and not _is_of(cluster, one):
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
        leaves={} if leaves is None else _leaves(leaves, issuer),
        is_published=is_published,
    )


def _with_clients(
    cluster: Cluster,
    found: SeenCertificates,
    leaves: Mapping[str, Any] | None,
    authority: Mapping[str, Any] | None,
    now: str,
) -> SeenCertificates:
    """With the authority of clients, which is never replaced by itself either."""
    if authority is None:
        return replace(found, clients=SeenAuthority(), is_published=False)
    seen, name = _seen_authority(authority, now), authority["metadata"]["name"]
    trouble = ""
    if not _is_of(cluster, authority):
        trouble = f"Secret {name} is there and does not belong to this StorageCluster: delete it, or rename it"
    elif seen.issuer is None:
        trouble = (
            f"Secret {name} has no authority that can be read, with its key: put it back from a backup; or delete the "
            "Secret, and all users of type tls get other certificates"
        )
    if trouble or found.trouble:  # those of nodes are renewed anyway
        return replace(found, clients=replace(seen, trouble=trouble))
    wanted = trusted_texts(authority, datetime.fromisoformat(now))
    is_trusted = leaves is not None and text_of(leaves, CLIENT_AUTHORITIES) == wanted
    return replace(found, clients=seen, is_published=found.is_published and is_trusted)


def _seen_authority(secret: Mapping[str, Any], now: str) -> SeenAuthority:
    issuer, successor = _authority(secret, AUTHORITY, AUTHORITY_KEY), _authority(secret, NEXT, NEXT_KEY)
    notes = secret["metadata"].get("annotations") or {}
    return SeenAuthority(
        _version(secret),
        issuer=None if issuer is None else _issuer(issuer),
        next_issuer=None if successor is None else _issuer(successor, notes.get(ANNOTATION_ROTATED_AT, now)),
        rotated_for=notes.get(ANNOTATION_ROTATED_FOR, ""),
    )


def _version(secret: Mapping[str, Any] | None) -> str:
    return "" if secret is None else str(secret["metadata"]["resourceVersion"])


def _is_of(cluster: Cluster, secret: Mapping[str, Any]) -> bool:
    return any(owner.get("uid") == cluster.uid for owner in secret["metadata"].get("ownerReferences") or ())


def _authority(secret: Mapping[str, Any], certificate: str, key: str) -> x509.Certificate | None:
    found, its_key = _certificate(secret, certificate), text_of(secret, key)
    return found if found is not None and its_key is not None and is_key_of(its_key, found) else None


def _certificate(secret: Mapping[str, Any], key: str) -> x509.Certificate | None:
    text = text_of(secret, key)
    try:
        return None if text is None else read_certificate(text)
    except ValueError:
        return None


def _issuer(certificate: x509.Certificate, added_at: str = "") -> SeenIssuer:
    ends = _text(certificate.not_valid_after_utc)
    return SeenIssuer(fingerprint(certificate), ends, added_at, certificate_text(certificate))


def _leaves(secret: Mapping[str, Any], issuer: x509.Certificate) -> dict[str, SeenLeaf]:
    found: dict[str, SeenLeaf] = {}
    for key in secret.get("data") or {}:
        holder = holder_of(key)
        if holder is None:
            continue
        certificate, its_key = _certificate(secret, certificate_of(holder)), text_of(secret, key_of(holder))
        if certificate is None or its_key is None or not is_key_of(its_key, certificate):
            found[holder] = SeenLeaf("", _text(datetime(1970, 1, 1, tzinfo=UTC)), frozenset())
            continue
        by = fingerprint(issuer) if is_issued_by(certificate, issuer) else ""
        found[holder] = SeenLeaf(by, _text(certificate.not_valid_after_utc), names_of(certificate))
    return found


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
