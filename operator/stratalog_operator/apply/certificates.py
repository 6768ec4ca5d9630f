"""Writes the Secrets of the operator's own authorities.

The authorities first, so that nothing is shown that its key could not issue again; then what nodes and clients trust,
with the certificates of nodes; each only over the version that was seen. Whatever is missing after a kill is seen in
the next pass: what is trusted and what is shown follow from the authorities' Secrets.

No key is in an error or a line of the log. Lives in the operator's event loop; keys are made in a thread.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from stratalog.model.errors import Conflict, NotFound
from stratalog_operator.kube.certificate_files import Pair, former_texts, issue, make_authority, trusted_texts
from stratalog_operator.kube.client import MERGE, Kubernetes, path_of
from stratalog_operator.kube.secret_texts import text_of
from stratalog_operator.plan.actions import AuthorityStep, RenewCertificates
from stratalog_operator.resources.names import ANNOTATION_ROTATED_AT, ANNOTATION_ROTATED_FOR, FIELD_MANAGER
from stratalog_operator.specs.certificate_secrets import (
    AUTHORITY,
    AUTHORITY_KEY,
    CLIENT_AUTHORITIES,
    ETCD_AUTHORITIES,
    FORMER,
    MOST_FORMER,
    NEXT,
    NEXT_KEY,
    OF_ETCD,
    authority_secret,
    certificate_of,
    certificates_manifest,
    clients_authority_secret,
    etcd_authority_secret,
    key_of,
    leaves_secret,
    trust_secret,
)
from stratalog_operator.specs.objects import Cluster

Texts = Mapping[str, str | None]
"""By the key of a Secret; None takes one away."""


async def renew_certificates(kubernetes: Kubernetes, cluster: Cluster, now: str, action: RenewCertificates) -> None:
    """Raises: Conflict when a Secret is not as it was seen; StratalogError for a request that failed."""
    at = datetime.fromisoformat(now)
    versions = dict(zip(_names(cluster), action.versions, strict=True))
    name = authority_secret(cluster)
    authority = await _stepped(kubernetes, cluster, at, now, name, versions[name], action.step, action.word)
    pair = Pair(_text(authority, AUTHORITY), _text(authority, AUTHORITY_KEY))
    days = cluster.spec.own_authority.certificate_days
    shown: dict[str, str | None] = {AUTHORITY: trusted_texts(authority, at)}
    if action.of_clients is not None:
        step, version = action.of_clients
        name = clients_authority_secret(cluster)
        clients = await _stepped(kubernetes, cluster, at, now, name, version, step, action.word)
        shown[CLIENT_AUTHORITIES] = trusted_texts(clients, at)
    pair_of_etcd = pair
    if action.of_etcd is not None:
        step, version = action.of_etcd
        name = etcd_authority_secret(cluster)
        of_etcd = await _stepped(kubernetes, cluster, at, now, name, version, step, action.word)
        shown[ETCD_AUTHORITIES] = trusted_texts(of_etcd, at)
        pair_of_etcd = Pair(_text(of_etcd, AUTHORITY), _text(of_etcd, AUTHORITY_KEY))
    for holder, names in sorted(action.issued.items()):
        called = f"node {holder}" if holder.isdecimal() else holder
        assert holder not in OF_ETCD or action.of_etcd is not None, "its authority issues"
        by = pair_of_etcd if holder in OF_ETCD else pair
        made = await asyncio.to_thread(issue, by, f"{called} of {cluster.name}", names, at, days)
        shown |= {certificate_of(holder): made.certificate, key_of(holder): made.key}
    for holder in action.gone:
        shown |= {certificate_of(holder): None, key_of(holder): None}
    trusted: Texts = {AUTHORITY: shown[AUTHORITY]}
    for name, texts in ((trust_secret(cluster), trusted), (leaves_secret(cluster), shown)):
        await _write(kubernetes, cluster, name, versions[name], texts, {})


def _names(cluster: Cluster) -> tuple[str, str, str]:
    return authority_secret(cluster), leaves_secret(cluster), trust_secret(cluster)


async def _stepped(
    kubernetes: Kubernetes,
    cluster: Cluster,
    at: datetime,
    now: str,
    name: str,
    version: str,
    step: AuthorityStep,
    word: str,
) -> Mapping[str, Any]:
    """The Secret of an authority after its step."""
    days = cluster.spec.own_authority.validity_days
    of = {clients_authority_secret(cluster): " clients", etcd_authority_secret(cluster): " etcd"}.get(name, "")
    called = f"{cluster.name}{of} {now}"
    if step is AuthorityStep.MAKE:
        made = await asyncio.to_thread(make_authority, called, at, days)
        first: Texts = {AUTHORITY: made.certificate, AUTHORITY_KEY: made.key}
        return await _write(kubernetes, cluster, name, "", first, _notes(now, word))
    there = await read_version(kubernetes, cluster.namespace, name, version)
    match step:
        case AuthorityStep.KEEP:
            return there
        case AuthorityStep.ADD:
            made = await asyncio.to_thread(make_authority, called, at, days)
            added: Texts = {NEXT: made.certificate, NEXT_KEY: made.key}
            return await _write(kubernetes, cluster, name, version, added, _notes(now, word))
        case AuthorityStep.SWITCH:
            # A client may trust, or show a certificate of, any of those that have not expired.
            former = [_text(there, AUTHORITY).rstrip("\n") + "\n", *former_texts(there, at)]
            moved: Texts = {
                AUTHORITY: _text(there, NEXT),
                AUTHORITY_KEY: _text(there, NEXT_KEY),
                FORMER: "".join(former[:MOST_FORMER]),
                NEXT: None,
                NEXT_KEY: None,
            }
            return await _write(kubernetes, cluster, name, version, moved, {})
        case AuthorityStep.DROP:
            return await _write(kubernetes, cluster, name, version, {FORMER: None}, {})


async def read_version(kubernetes: Kubernetes, namespace: str, name: str, version: str) -> Mapping[str, Any]:
    """Raises: Conflict where the Secret is of another version."""
    try:
        there = await kubernetes.ask("GET", path_of("Secret", namespace, name))
    except NotFound:
        raise Conflict(f"Secret {name} is gone since it was read: it is read again") from None
    if there["metadata"]["resourceVersion"] != version:
        raise Conflict(f"Secret {name} has changed since it was read: it is read again")
    return there


async def _write(
    kubernetes: Kubernetes, cluster: Cluster, name: str, version: str, texts: Texts, notes: Mapping[str, str]
) -> Mapping[str, Any]:
    data = {key: None if text is None else base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    if not version:
        there = {key: value for key, value in data.items() if value is not None}
        made = certificates_manifest(cluster, name, there, notes)
        return await kubernetes.ask("POST", path_of("Secret", cluster.namespace), made)
    body = {"metadata": {"resourceVersion": version, "annotations": dict(notes)}, "data": data}
    path, query = path_of("Secret", cluster.namespace, name), {"fieldManager": FIELD_MANAGER}
    return await kubernetes.ask("PATCH", path, body, query=query, content_type=MERGE)


def _notes(now: str, word: str) -> dict[str, str]:
    return {ANNOTATION_ROTATED_AT: now, ANNOTATION_ROTATED_FOR: word}


def _text(secret: Mapping[str, Any], key: str) -> str:
    text = text_of(secret, key)
    if text is None:
        raise Conflict(f"{key} of Secret {secret['metadata']['name']} is gone since it was read: it is read again")
    return text
