"""How clients of the listeners prove who they are, and what they may do: the settings of the storage nodes that say so,
and the certificate that they show.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from typing import Final

from stratalog.model.listeners import SecurityProtocol
from stratalog.model.rights import USER, Principal
from stratalog_operator.resources.cluster import ListenerAuthentication
from stratalog_operator.specs.certificate_secrets import (
    AUTHORITY,
    CLIENT_AUTHORITIES,
    certificate_of,
    has_certificates,
    has_clients_authority,
    key_of,
    leaves_secret,
    trust_secret,
    uses_own_authority,
)
from stratalog_operator.specs.objects import Cluster, Manifest

CERTIFICATE_FOLDER: Final = "/etc/stratalog/tls"
"""Mounted whole, never by `subPath`: only so it changes where the Secret does."""
AUTHORITIES_FOLDER: Final = "/etc/stratalog/ca"
"""What commands in a pod with the token trust: they show no certificate, so that the token decides what they may do."""
_MECHANISMS: Final = {"scram-sha-512": "SCRAM-SHA-512", "oauth": "OAUTHBEARER"}


def security_settings(cluster: Cluster) -> dict[str, str]:
    """Of a storage node, by Kafka's names. On its command line, for only it has these listeners."""
    listeners = cluster.further_listeners
    protocols = [(one.name, one.protocol) for one in listeners if one.protocol is not SecurityProtocol.PLAINTEXT]
    authentications = [one.authentication for one in listeners if one.authentication is not None]
    found: dict[str, str] = {}
    if protocols:
        found["listener.security.protocol.map"] = ",".join(f"{name}:{protocol}" for name, protocol in protocols)
    if has_certificates(cluster):
        found["ssl.certificate.folder"] = CERTIFICATE_FOLDER
    if any(one.type == "tls" for one in authentications):
        found["ssl.client.auth"] = "required"
    mechanisms = sorted({_MECHANISMS[one.type] for one in authentications if one.type in _MECHANISMS})
    if mechanisms:
        found["sasl.enabled.mechanisms"] = ",".join(mechanisms)
    for one in authentications:
        found |= _of_tokens(one)
    authorization = cluster.spec.authorization
    if authorization is not None:
        found["authorizer.class.name"] = "stratalog"
        if authorization.super_users:
            found["super.users"] = ";".join(str(Principal(USER, name)) for name in authorization.super_users)
    return found


def _of_tokens(one: ListenerAuthentication) -> dict[str, str]:
    given = {
        "sasl.oauthbearer.jwks.endpoint.url": one.jwks_endpoint_uri,
        "sasl.oauthbearer.expected.issuer": one.valid_issuer_uri,
        "sasl.oauthbearer.expected.audience": one.audience,
        "sasl.oauthbearer.sub.claim.name": one.user_name_claim,
    }
    return {key: value for key, value in given.items() if value is not None}


def internal_settings(cluster: Cluster, *, is_node: bool = True) -> dict[str, str]:
    """Of each process, for what the parts speak with each other."""
    if not cluster.has_internal_tls:
        return {}
    found = {"http.security.protocol": "SSL", "ssl.certificate.folder": CERTIFICATE_FOLDER}
    return {**found, "security.inter.broker.protocol": "SSL"} if is_node else found


def add_certificates(cluster: Cluster, holder: str, volumes: list[Manifest], mounts: list[Manifest]) -> None:
    certificate = certificate_volume(cluster, holder)
    if certificate is not None:
        volumes.append({"name": "tls", "secret": certificate})
        mounts.append({"name": "tls", "mountPath": CERTIFICATE_FOLDER, "readOnly": True})
    if cluster.has_internal_tls:
        volumes.append({"name": "ca", "secret": {"secretName": trust_secret(cluster), "defaultMode": 0o440}})
        mounts.append({"name": "ca", "mountPath": AUTHORITIES_FOLDER, "readOnly": True})


def certificate_volume(cluster: Cluster, holder: str) -> Manifest | None:
    """The files of this process. None: it shows no certificate."""
    if not has_certificates(cluster):
        return None
    if not uses_own_authority(cluster):
        assert cluster.spec.tls is not None, "it names the Secret"
        return {"secretName": cluster.spec.tls.certificate_secret_ref, "defaultMode": 0o440}
    files = {certificate_of(holder): "tls.crt", key_of(holder): "tls.key", AUTHORITY: AUTHORITY}
    if holder.isdecimal() and has_clients_authority(cluster):
        files[CLIENT_AUTHORITIES] = CLIENT_AUTHORITIES
    items: list[Manifest] = [{"key": key, "path": path} for key, path in files.items()]
    return {"secretName": leaves_secret(cluster), "items": [*items], "defaultMode": 0o440}


def why_without_effect(cluster: Cluster, authentication: str | None) -> str:
    """Why what a StorageUser says does not bind its user, in words; empty: it does. `authentication`: its type."""
    asked = {one.authentication.type for one in cluster.spec.listeners if one.authentication is not None}
    words = []
    needed = {"tls-external": "tls"}.get(authentication or "", authentication)
    if needed is not None and needed not in asked:
        words.append(f"no listener of cluster {cluster.name} has authentication {needed}")
    if cluster.spec.authorization is None:
        words.append(f"cluster {cluster.name} has no authorization, so everybody may do everything")
    return "; ".join(words)
