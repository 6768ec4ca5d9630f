"""The settings of one process that say how others prove who they are: TLS and SASL of its listeners, TLS of its HTTP
ports.

Part of `ProcessSettings`; names are Kafka's where Kafka has one.
"""

from __future__ import annotations

from typing import Annotated, Final, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from stratalog.machines.rights.principal_names import parse_name_rules
from stratalog.model.listeners import SecurityProtocol, parse_protocols
from stratalog.model.rights import parse_principals
from stratalog.settings.choices import ClientAuth, PortProtocol
from stratalog.settings.units import DAY_MS, GIB, HOUR_MS, INT64_MAX, KIB, MIB, MINUTE_MS, SECOND_MS
from stratalog.settings.wrong_values import key_of

SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _protocols(value: str) -> str:
    parse_protocols(value)
    return value


def _principals(value: str) -> str:
    parse_principals(value)
    return value


def _authorizer(value: str) -> str:
    if value and value not in AUTHORIZERS:
        raise ValueError(f"expected nothing (no authorizer), or {' or '.join(AUTHORIZERS)}, not {value[:80]!r}")
    return value


def _mechanisms(value: str) -> str:
    found = _listed(value)
    if wrong := [one for one in found if one not in SASL_MECHANISMS]:
        raise ValueError(f"expected some of {', '.join(SASL_MECHANISMS)}, with commas between, not {wrong[0][:80]!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"a mechanism is named twice in {value[:80]!r}")
    return value


def _listed(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (one.strip() for one in value.split(","))))


def _name_rules(value: str) -> str:
    parse_name_rules(value)
    return value


AUTHORIZERS: Final = ("stratalog", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
"""Both are the same one: the second is the name by which Kafka knows it."""
AuthorizerName: TypeAlias = Annotated[str, AfterValidator(_authorizer)]
"""One of `AUTHORIZERS`; empty: none."""
Principals: TypeAlias = Annotated[str, AfterValidator(_principals)]
"""TYPE:NAME with semicolons between; empty: none."""
ListenerProtocols: TypeAlias = Annotated[str, AfterValidator(_protocols)]
"""NAME:PROTOCOL of listeners, with commas; empty: none."""
SaslMechanisms: TypeAlias = Annotated[str, AfterValidator(_mechanisms)]
"""Names of SASL mechanisms, with commas."""
NameRules: TypeAlias = Annotated[str, AfterValidator(_name_rules)]
"""Rules that make a name of a certificate's subject, with commas."""


class SecuritySettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=key_of, populate_by_name=True)

    listener_security_protocol_map: ListenerProtocols = Field(
        default="",
        description="What each listener of listeners asks of its clients: NAME:PROTOCOL, separated by commas, with "
        "PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL. Listeners that are not named speak PLAINTEXT.",
    )
    sasl_enabled_mechanisms: SaslMechanisms = Field(
        default="SCRAM-SHA-256,SCRAM-SHA-512",
        description="Mechanisms by which clients of listeners with SASL log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 "
        "and OAUTHBEARER, separated by commas. All but the last compare with the SCRAM credentials of users.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = Field(
        default="",
        max_length=4096,
        description="Where the keys are that tokens of OAUTHBEARER are signed with: https://… or a file (file:///…), "
        "as a JSON Web Key Set.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = Field(
        default=1 * HOUR_MS,
        ge=1 * SECOND_MS,
        le=30 * DAY_MS,
        description="How often these keys are read again. A token with an unknown key has them read at once, at most "
        "every ten seconds.",
    )
    sasl_oauthbearer_expected_issuer: str = Field(
        default="", max_length=4096, description="Issuer that tokens must name. Empty: any."
    )
    sasl_oauthbearer_expected_audience: str = Field(
        default="",
        max_length=4096,
        description="Audiences of which tokens must name one, separated by commas. Empty: any.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = Field(
        default=30,
        ge=0,
        le=600,
        description="Difference of clocks that is allowed when the times of tokens are checked.",
    )
    sasl_oauthbearer_sub_claim_name: str = Field(
        default="sub", min_length=1, max_length=256, description="Claim of a token that names the user."
    )
    sasl_plain_unencrypted_enable: bool = Field(
        default=False,
        description="Whether PLAIN and OAUTHBEARER are offered on listeners without TLS (SASL_PLAINTEXT), too, where "
        "passwords and tokens can be read on the network.",
    )
    sasl_server_max_receive_size: int = Field(
        default=512 * KIB,
        ge=1 * KIB,
        le=100 * MIB,
        description="Largest request frame of a connection that has not logged in yet.",
    )
    connections_max_reauth_ms: int = Field(
        default=0,
        ge=0,
        le=INT64_MAX,
        description="How long a login by SASL lasts; then the client logs in again on the same connection, or is "
        "disconnected at its next request. 0: as long as the connection.",
    )
    connection_failed_authentication_delay_ms: int = Field(
        default=100,
        ge=0,
        le=1 * MINUTE_MS,
        description="How long the answer to a failed login waits. After the third failure of an address within a "
        "minute, each further one doubles it, up to 10 s.",
    )
    ssl_certificate_folder: str = Field(
        default="",
        max_length=4096,
        description="Folder with the certificate chain (tls.crt), the private key (tls.key) and perhaps the trusted "
        "authorities (ca.crt) of this process, as a mounted Secret of Kubernetes has them; perhaps also authorities by "
        "which only clients of Kafka listeners are known (clients-ca.crt). Changed files are used for new connections "
        "within seconds.",
    )
    ssl_keystore_location: str = Field(
        default="",
        max_length=4096,
        description="PEM file with the private key and the certificate chain of this process (Kafka's "
        "ssl.keystore.type=PEM), in place of those of ssl.certificate.folder.",
    )
    ssl_truststore_location: str = Field(
        default="",
        max_length=4096,
        description="PEM file with the authorities that this process trusts, in place of those of "
        "ssl.certificate.folder.",
    )
    ssl_client_auth: ClientAuth = Field(
        default=ClientAuth.NONE,
        description="Whether listeners with SSL ask clients for a certificate. Those with SASL_SSL do not.",
    )
    ssl_principal_mapping_rules: NameRules = Field(
        default="DEFAULT",
        max_length=16_384,
        description="Names of clients from their certificates' subjects: RULE:pattern/replacement/[LU] or DEFAULT, "
        "separated by commas; the first rule that matches counts, and a client that none matches is refused.",
    )
    ssl_enabled_protocols: str = Field(
        default="TLSv1.2,TLSv1.3", max_length=64, description="Versions of TLS that are spoken, separated by commas."
    )
    ssl_cipher_suites: str = Field(
        default="",
        max_length=4096,
        description="Ciphers for TLS 1.2, as a list of OpenSSL. Empty: those with forward secrecy, without SHA-1.",
    )
    security_inter_broker_protocol: PortProtocol = Field(
        default=PortProtocol.PLAINTEXT,
        description="What nodes speak to each other, and so what the listener of --listen speaks: PLAINTEXT, or SSL, "
        "where both sides show the certificate of ssl.certificate.folder. The same on all nodes.",
    )
    http_security_protocol: PortProtocol = Field(
        default=PortProtocol.PLAINTEXT,
        description="What the HTTP ports speak (metrics.listen, meta.listen and the --listen of a meta service): "
        "PLAINTEXT (http://) or SSL (https://), with the certificate of ssl.certificate.folder.",
    )
    http_ssl_client_auth: ClientAuth = Field(
        default=ClientAuth.REQUESTED,
        description="Whether HTTP ports with TLS ask for a certificate. Nodes, the meta service and the operator prove "
        "by theirs who they are; probes and browsers have none, so required keeps them out.",
    )

    authorizer_class_name: AuthorizerName = Field(
        default="",
        description="What decides what a client may do: stratalog, or the name of Kafka's StandardAuthorizer, which "
        "means the same here: the rules (ACLs) that clients create. Empty: every client may do everything, and "
        "requests about rules are answered SECURITY_DISABLED (54). The same on all nodes.",
    )
    super_users: Principals = Field(
        default="",
        max_length=65_536,
        description="Principals to which every operation is allowed, separated by semicolons, such as "
        "User:admin;User:backup.",
    )
    allow_everyone_if_no_acl_found: bool = Field(
        default=False,
        description="Whether everyone may use a resource that no rule (ACL) is about.",
    )
    authorizer_metadata_max_age_ms: int = Field(
        default=0,
        ge=0,
        le=1 * DAY_MS,
        description="A node whose metadata, and so whose rules (ACLs), may be older than this closes the connections "
        "of clients and takes no new ones, until it hears of the meta service again. It looks once a second. Much "
        "longer than node.lease.ms, because while no meta service can be reached this stops all clients. 0: it serves "
        "them by the rules that it saw last. Has no effect without an authorizer.",
    )

    audit_log_enable: bool = Field(
        default=True,
        description="Whether changes and denials are written to the audit log (docs/security.md).",
    )
    audit_log_dir: str = Field(
        default="",
        max_length=4096,
        description="Directory for the files of the audit log, audit-node-ID.log or audit-meta.log. Empty: lines go to "
        "standard error.",
    )
    audit_log_file_max_bytes: int = Field(
        default=100 * MIB,
        ge=64 * KIB,
        le=100 * GIB,
        description="Size at which a new file of the audit log begins.",
    )
    audit_log_file_max_count: int = Field(
        default=10,
        ge=1,
        le=1_000,
        description="Maximum number of files of the audit log, with the one that is written; the oldest is deleted.",
    )
    audit_log_window_ms: int = Field(
        default=1 * MINUTE_MS,
        ge=10,
        le=1 * DAY_MS,
        description="Denials of one kind (principal, address, operation, resource) have one line when the first one "
        "comes, and then one line with their number for each window of this time.",
    )

    @model_validator(mode="after")
    def _check_keys_of_tokens(self) -> Self:
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url and not url.startswith(("https://", "http://", "file:///")):
            raise ValueError("sasl.oauthbearer.jwks.endpoint.url: expected https://, http:// or file:///")
        if "OAUTHBEARER" in self.sasl_mechanisms and not url:
            raise ValueError("OAUTHBEARER needs the keys of tokens: set sasl.oauthbearer.jwks.endpoint.url")
        return self

    @model_validator(mode="after")
    def _check_certificates(self) -> Self:
        protocols = (self.http_security_protocol, self.security_inter_broker_protocol)
        if PortProtocol.SSL in protocols and not self.has_certificate:
            name = "http.security.protocol" if protocols[0] is PortProtocol.SSL else "security.inter.broker.protocol"
            raise ValueError(f"{name}=SSL needs a certificate: set ssl.certificate.folder")
        return self

    @property
    def has_certificate(self) -> bool:
        return bool(self.ssl_certificate_folder or self.ssl_keystore_location)

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer_class_name)

    @property
    def security_protocols(self) -> dict[str, SecurityProtocol]:
        """Of listeners that do not speak plain text, by name."""
        return parse_protocols(self.listener_security_protocol_map)

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        return _listed(self.sasl_enabled_mechanisms)
