"""Gives a user a password: writes it into the user's Secret, then has the cluster take it.

The Secret first: a password that the cluster takes is always there to be read, whenever the operator is killed. The
write names the Secret's version and has the word of the person who asked, so that one word makes one password. The
cluster keeps a salt that follows from that version: the next pass sees by it whether this was done to its end.

No password is in an error, a log line, an Event or a status. Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Mapping
from typing import Any, Final, Protocol

from stratalog.machines.sasl.scram import credential_from, salted
from stratalog.model.errors import Conflict, NotFound
from stratalog.model.scram import LEAST_ITERATIONS, ScramMechanism, UserCredential
from stratalog_operator.kube.client import MERGE, Kubernetes, path_of
from stratalog_operator.kube.secret_texts import read_given, text_of
from stratalog_operator.plan.actions import PasswordSource, PutCertificate, PutPassword
from stratalog_operator.resources.names import FIELD_MANAGER
from stratalog_operator.specs.user import (
    CERTIFICATE,
    JAAS,
    KEY,
    PASSWORD,
    jaas_config,
    rotation_notes,
    salt_of,
    secret_data,
    secret_manifest,
)

_CHARACTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 32
"""Of a generated password, as Strimzi's: 190 bits."""


class Credentials(Protocol):
    async def put_credential(self, credential: UserCredential) -> None: ...


async def put_password(
    kubernetes: Kubernetes, meta: Credentials, namespace: str, now: str, action: PutPassword
) -> None:
    """Raises: Conflict when the Secret is not as it was seen; InvalidRequest for a given password that cannot be used;
    StratalogError for a request that failed."""
    there = await seen_secret(kubernetes, namespace, action)
    password = await _password(kubernetes, namespace, action, there)
    secret = await _written(kubernetes, namespace, now, action, there, password)
    metadata = secret["metadata"]
    salt = salt_of(action.owner.uid, metadata["uid"], metadata["resourceVersion"])
    mechanism, iterations = ScramMechanism.SCRAM_SHA_512, LEAST_ITERATIONS
    key = await asyncio.to_thread(salted, mechanism, password, salt, iterations)
    credential = credential_from(mechanism, key, salt, iterations)
    await meta.put_credential(UserCredential(action.owner.user, mechanism, credential))


async def seen_secret(
    kubernetes: Kubernetes, namespace: str, action: PutPassword | PutCertificate
) -> Mapping[str, Any] | None:
    """The Secret of the user, as the plan saw it. Raises: Conflict."""
    name = action.owner.name
    try:
        there = await kubernetes.ask("GET", path_of("Secret", namespace, name))
    except NotFound:
        there = None
    found = ("", "") if there is None else (there["metadata"]["uid"], there["metadata"]["resourceVersion"])
    if found != (action.secret_uid, action.secret_version):
        raise Conflict(f"Secret {name} has changed since it was read: it is read again")
    return there


async def _password(
    kubernetes: Kubernetes, namespace: str, action: PutPassword, there: Mapping[str, Any] | None
) -> str:
    match action.source:
        case PasswordSource.GENERATED:
            return generate()
        case PasswordSource.GIVEN:
            assert action.given is not None, "it is somewhere"
            return await read_given(kubernetes, namespace, action.given, action.owner.name)
        case PasswordSource.KEPT:
            kept = None if there is None else text_of(there, PASSWORD)
            if kept is None:
                raise Conflict(f"Secret {action.owner.name} has no password any more: it is read again")
            return kept


async def _written(
    kubernetes: Kubernetes,
    namespace: str,
    now: str,
    action: PutPassword,
    there: Mapping[str, Any] | None,
    password: str,
) -> Mapping[str, Any]:
    """The Secret once it has the password: as the server answers it."""
    owner, notes = action.owner, rotation_notes(now, action.word)
    data = secret_data(owner.user, password)
    if there is None:
        return await kubernetes.ask("POST", path_of("Secret", namespace), secret_manifest(owner, data, notes))
    if text_of(there, PASSWORD) == password and text_of(there, JAAS) == jaas_config(owner.user, password):
        return there
    metadata: dict[str, Any] = {"resourceVersion": action.secret_version}
    if text_of(there, PASSWORD) != password:
        metadata["annotations"] = notes
    # A certificate that it had is of no use to a user who logs in by a password.
    body = {"metadata": metadata, "data": {CERTIFICATE: None, KEY: None, **data}}
    path, query = path_of("Secret", namespace, owner.name), {"fieldManager": FIELD_MANAGER}
    return await kubernetes.ask("PATCH", path, body, query=query, content_type=MERGE)


def generate() -> str:
    """Letters and digits alone, a letter first: it needs no quotes anywhere."""
    first = secrets.choice(string.ascii_letters)
    return first + "".join(secrets.choice(_CHARACTERS) for _ in range(_LENGTH - 1))
