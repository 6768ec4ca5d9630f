"""A node with listeners of SASL, and the users that its tests make."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from support.certificates import Authority
from support.closed_clients import by_aiokafka, by_kafka_python, by_librdkafka
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.tokens import Issuer

PASSWORD = "open, sesame = yes"
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class ClosedNode(NodeProcess):
    """With a listener of SASL over TLS, one of SASL without, and one that asks for a certificate."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.authority = Authority()
        self.issuer = Issuer(folder / "issuer")
        self.ports = free_port(), free_port(), free_port()
        self.tls = self.authority.issue("node").write_folder(folder / "tls", self.authority.certificate)
        own = {
            "listeners": f"closed://{self.closed},plain://{self.plain},mutual://{self.mutual}",
            "listener.security.protocol.map": "closed:SASL_SSL,plain:SASL_PLAINTEXT,mutual:SSL",
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.url,
            "ssl.certificate.folder": str(self.tls),
            "connection.failed.authentication.delay.ms": "0",
        }
        super().__init__(folder / "data", settings=own | dict(settings or {}))

    @property
    def closed(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def plain(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def mutual(self) -> str:
        return f"127.0.0.1:{self.ports[2]}"

    @property
    def ca(self) -> str:
        return str(self.tls / "ca.crt")

    def new_admin(self) -> AdminClient:
        """By the listener that asks for no login. Keep it until its answers are there: they end with it."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def set_user(self, name: str, mechanism: str, password: str = PASSWORD) -> None:
        admin = self.new_admin()
        info = ScramCredentialInfo(SCRAM[mechanism], 4_096)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)

    def delete_user(self, name: str, mechanism: str) -> None:
        admin = self.new_admin()
        for done in admin.alter_user_scram_credentials([UserScramCredentialDeletion(name, SCRAM[mechanism])]).values():
            done.result(30)

    def allow(self, user: str, operation: AclOperation, of_type: ResourceType, name: str) -> None:
        allowed = AclPermissionType.ALLOW
        rule = AclBinding(of_type, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, allowed)
        admin = self.new_admin()
        for done in admin.create_acls([rule]).values():
            done.result(30)

    def revoke(self, user: str, of_type: ResourceType) -> None:
        """All of the user's rules about things of that type."""
        anything = ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
        wanted = AclBindingFilter(of_type, None, *anything)
        admin = self.new_admin()
        for done in admin.delete_acls([wanted]).values():
            assert done.result(30)

    def librdkafka(self, user: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> dict[str, Any]:
        """Settings of a client that logs in over TLS."""
        return {
            "bootstrap.servers": self.closed,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def kafka_python(self, user: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        return {
            "bootstrap_servers": self.closed,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": self.ca,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": PASSWORD,
        }

    def aiokafka(self, user: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        settings = self.kafka_python(user, mechanism)
        del settings["ssl_cafile"]
        return settings | {"ssl_context": ssl.create_default_context(cafile=self.ca)}


Client = tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any], str, list[bytes]], list[bytes]]]
CLIENTS: dict[str, Client] = {
    "librdkafka": (ClosedNode.librdkafka, by_librdkafka),
    "kafka-python": (ClosedNode.kafka_python, by_kafka_python),
    "aiokafka": (ClosedNode.aiokafka, by_aiokafka),
}
"""The settings of a client, and how it writes and reads back."""
