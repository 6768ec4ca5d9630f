"""The token of a cluster's meta and admin ports, as its Secret has it now: read in each pass, for a Secret may change.

Never logged, and in no error.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.tokens import parse_tokens
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.specs.objects import Cluster

KEY = "token"


async def read_token(kubernetes: Kubernetes, cluster: Cluster) -> str:
    """The one to show; empty while there is no Secret. Raises: as `read_tokens`."""
    return next(iter(await read_tokens(kubernetes, cluster)), "")


async def read_tokens(kubernetes: Kubernetes, cluster: Cluster) -> tuple[str, ...]:
    """All that are valid; none while there is no Secret. Raises: InvalidRequest for a Secret without a token, and for
    one that belongs to another object where the StorageCluster names none: a person's own belongs to none."""
    try:
        secret = await kubernetes.ask("GET", path_of("Secret", cluster.namespace, cluster.token_secret))
    except NotFound:
        return ()
    place = f"Secret {cluster.namespace}/{cluster.token_secret}"
    owners = secret["metadata"].get("ownerReferences") or ()
    if cluster.spec.meta.token_secret_ref is None and owners and all(one.get("uid") != cluster.uid for one in owners):
        whose = f"{owners[0].get('kind')} {owners[0].get('name')}"
        raise InvalidRequest(f"{place} belongs to {whose} and not to this StorageCluster: delete {whose}, or rename it")
    return tokens_in(secret, place)


def tokens_in(secret: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """As the processes read it: a line each. Raises: InvalidRequest."""
    encoded = (secret.get("data") or {}).get(KEY)
    if not isinstance(encoded, str):
        raise InvalidRequest(f"{place} has no key {KEY}: put the token of the cluster there")
    try:
        return parse_tokens(base64.b64decode(encoded, validate=True).decode("ascii"), f"{KEY} of {place}")
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidRequest(f"{KEY} of {place} holds other characters than a token has") from None
