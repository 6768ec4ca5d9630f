"""Texts in Secrets. None of them is ever in an error or in a line of the log."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.resources.user import SecretKeyRef

MAX_PASSWORD: Final = 1024
"""Characters."""


async def read_given(kubernetes: Kubernetes, namespace: str, given: SecretKeyRef) -> str:
    """Raises: InvalidRequest for one that is not there or cannot be a password. No part of it is in the error."""
    place = f"key {given.key} of Secret {given.name}"
    try:
        secret = await kubernetes.ask("GET", path_of("Secret", namespace, given.name))
    except NotFound:
        raise InvalidRequest(f"Secret {given.name}, which has the password, is not there: create it") from None
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
