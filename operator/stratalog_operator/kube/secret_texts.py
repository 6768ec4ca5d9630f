"""Texts in Secrets. None of them is ever in an error or in a line of the log."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.resources.names import ANNOTATION_PASSWORD_OF
from stratalog_operator.resources.user import SecretKeyRef

MAX_PASSWORD: Final = 1024
"""Characters."""


async def read_given(kubernetes: Kubernetes, namespace: str, given: SecretKeyRef, user: str) -> str:
    """The password that StorageUser `user` is to have. Its Secret must name that object: the operator may read all
    Secrets of the namespace, and a person with the right to write StorageUsers must not have it copy any of them.

    Raises: InvalidRequest for one that is not there or cannot be a password. No part of it is in the error."""
    place = f"key {given.key} of Secret {given.name}"
    try:
        secret = await kubernetes.ask("GET", path_of("Secret", namespace, given.name))
    except NotFound:
        raise InvalidRequest(f"Secret {given.name}, which has the password, is not there: create it") from None
    notes = secret["metadata"].get("annotations") or {}
    if user not in [name.strip() for name in str(notes.get(ANNOTATION_PASSWORD_OF, "")).split(",")]:
        raise InvalidRequest(
            f"Secret {given.name} does not name StorageUser {user} as one that may have a password from it: kubectl "
            f"annotate secret/{given.name} --overwrite {ANNOTATION_PASSWORD_OF}={user}"
        )
    password = text_of(secret, given.key)
    if password is None:
        raise InvalidRequest(f"{place} is not there, or is not text: put the password there")
    if not 0 < len(password) <= MAX_PASSWORD:
        raise InvalidRequest(f"{place} has {len(password)} characters: a password has 1 to {MAX_PASSWORD}")
    if not password.isprintable():
        raise InvalidRequest(f"{place} has a character that is not printed, such as a line end: write it without")
    return password


def text_of(secret: Mapping[str, Any], key: str) -> str | None:
    """None for a key that is not there, or whose value is not text."""
    encoded = (secret.get("data") or {}).get(key)
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
