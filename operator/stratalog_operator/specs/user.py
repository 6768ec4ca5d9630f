"""A user as a StorageUser asks for it: its principals, its rules, its quotas, its Secret, and the salt of its password.

Pure. Source: docs/kubernetes-security.md. No password is in a text of anything here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from stratalog.machines.quotas.alterations import NO_LIMITS
from stratalog.machines.sasl.scram import salt_from
from stratalog.model.quotas import QuotaLimits
from stratalog.model.rights import (
    CLUSTER_NAME,
    USER,
    Operation,
    PatternType,
    Permission,
    Principal,
    Resource,
    ResourceType,
    Rule,
)
from stratalog_operator.resources.names import (
    ANNOTATION_ROTATED_AT,
    ANNOTATION_ROTATED_FOR,
    LABEL_CLUSTER,
)
from stratalog_operator.resources.user import AclRule, StorageUserSpec
from stratalog_operator.specs.objects import owner_reference

PASSWORD: Final = "password"
"""The key of a user's Secret."""
CERTIFICATE: Final = "user.crt"
KEY: Final = "user.key"
JAAS: Final = "sasl.jaas.config"
"""The key with what Java clients are configured with."""
_PATTERNS: Final = {"literal": PatternType.LITERAL, "prefix": PatternType.PREFIXED}
_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS: Final = {one.name.title().replace("_", ""): one for one in Operation}


def user_name(spec: StorageUserSpec, name: str) -> str:
    """`name`: of the object."""
    return spec.user_name or name


def principal_of(spec: StorageUserSpec, name: str) -> str:
    """As rules name the user."""
    return str(Principal(USER, quota_user(spec, name)))


def quota_user(spec: StorageUserSpec, name: str) -> str:
    """As quotas name the user: its principal without the type."""
    user = user_name(spec, name)
    is_certificate = spec.authentication is not None and spec.authentication.type in ("tls", "tls-external")
    return f"CN={user}" if is_certificate else user


def has_password(spec: StorageUserSpec) -> bool:
    return spec.authentication is not None and spec.authentication.type == "scram-sha-512"


def has_certificate(spec: StorageUserSpec) -> bool:
    return spec.authentication is not None and spec.authentication.type == "tls"


def has_secret(spec: StorageUserSpec) -> bool:
    return has_password(spec) or has_certificate(spec)


@lru_cache(maxsize=4096)
def wanted_rules(acls: tuple[AclRule, ...], principal: str) -> frozenset[Rule]:
    return frozenset(rule for acl in acls for rule in _rules(acl, principal))


def _rules(acl: AclRule, principal: str) -> Iterator[Rule]:
    given = acl.resource
    resource = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
    if given.name is not None:
        resource = Resource(_RESOURCES[given.type], given.name, _PATTERNS[given.pattern_type])
    permission = Permission.ALLOW if acl.type == "allow" else Permission.DENY
    for operation in acl.operations:
        yield Rule(resource, principal, acl.host, _OPERATIONS[operation], permission)


def wanted_limits(spec: StorageUserSpec) -> QuotaLimits:
    """As the meta service keeps them: numbers with a fraction."""
    if spec.quotas is None:
        return NO_LIMITS
    given = spec.quotas.model_dump(exclude_none=True)
    return QuotaLimits(**{key: float(limit) for key, limit in given.items()})


def salt_of(user_uid: str, secret_uid: str, secret_version: str) -> bytes:
    """Of a credential: the same for the same state of the same Secret, so that what is kept tells which password it is
    of. No other user and no other password has it, and it cannot be known before."""
    about = "\0".join(("stratalog user", user_uid, secret_uid, secret_version))
    return salt_from(hashlib.sha512(about.encode()).digest())


# The Secret -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SecretOwner:
    """The StorageUser whose Secret it is."""

    name: str
    uid: str
    cluster: str
    user: str


def secret_manifest(owner: SecretOwner, data: Mapping[str, str], notes: Mapping[str, str]) -> dict[str, Any]:
    """It goes with the StorageUser; `data` as base64."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": owner.name,
            "labels": {
                "app.kubernetes.io/name": "stratalog",
                "app.kubernetes.io/instance": owner.cluster,
                "app.kubernetes.io/managed-by": "stratalog-operator",
                LABEL_CLUSTER: owner.cluster,
            },
            "annotations": dict(notes),
            "ownerReferences": [owner_reference("StorageUser", owner.name, owner.uid)],
        },
        "data": dict(data),
    }


def secret_data(user: str, password: str) -> dict[str, str]:
    texts = {PASSWORD: password, JAAS: jaas_config(user, password)}
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def jaas_config(user: str, password: str) -> str:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{login} required username="{_quoted(user)}" password="{_quoted(password)}";'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def rotation_notes(now: str, word: str) -> dict[str, str]:
    """On the Secret, in the write that has the new password: so a password is generated once for each word."""
    return {ANNOTATION_ROTATED_AT: now, ANNOTATION_ROTATED_FOR: word}
