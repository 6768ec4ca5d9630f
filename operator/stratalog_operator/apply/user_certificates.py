"""Gives a user a certificate of the authority of clients: makes a key, issues, and writes both into the user's Secret.

One write has the key, the certificate and the word of the person who asked, over the version that was seen: so one word
makes one certificate. No key is in an error, a log line, an Event or a status. Lives in the operator's event loop; keys
are made in a thread.
"""

from __future__ import annotations

import asyncio
import base64
from datetime import datetime
from typing import Any

from stratalog.model.errors import Conflict
from stratalog_operator.apply.certificates import read_version
from stratalog_operator.apply.user_passwords import seen_secret
from stratalog_operator.kube.certificate_files import Pair, issue
from stratalog_operator.kube.client import MERGE, Kubernetes, path_of
from stratalog_operator.kube.secret_texts import text_of
from stratalog_operator.plan.actions import PutCertificate
from stratalog_operator.resources.names import FIELD_MANAGER
from stratalog_operator.specs.certificate_secrets import AUTHORITY, AUTHORITY_KEY, clients_authority_secret
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.user import CERTIFICATE, JAAS, KEY, PASSWORD, rotation_notes, secret_manifest


async def put_certificate(kubernetes: Kubernetes, cluster: Cluster, now: str, action: PutCertificate) -> None:
    """Raises: Conflict when a Secret is not as it was seen; StratalogError for a request that failed."""
    owner, namespace = action.owner, cluster.namespace
    there = await seen_secret(kubernetes, namespace, action)
    name = clients_authority_secret(cluster)
    authority = await read_version(kubernetes, namespace, name, action.authority_version)
    certificate, key = text_of(authority, AUTHORITY), text_of(authority, AUTHORITY_KEY)
    if certificate is None or key is None:
        raise Conflict(f"Secret {name} has no authority any more: it is read again")
    at, days = datetime.fromisoformat(now), cluster.spec.own_authority.certificate_days
    made = await asyncio.to_thread(issue, Pair(certificate, key), owner.user, (), at, days)
    notes = rotation_notes(now, action.word)
    texts = {CERTIFICATE: made.certificate, KEY: made.key}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    if there is None:
        await kubernetes.ask("POST", path_of("Secret", namespace), secret_manifest(owner, data, notes))
        return
    metadata: dict[str, Any] = {"resourceVersion": action.secret_version, "annotations": notes}
    # A password that it had is of no use to a user who logs in by a certificate.
    body = {"metadata": metadata, "data": {PASSWORD: None, JAAS: None, **data}}
    path, query = path_of("Secret", namespace, owner.name), {"fieldManager": FIELD_MANAGER}
    await kubernetes.ask("PATCH", path, body, query=query, content_type=MERGE)
