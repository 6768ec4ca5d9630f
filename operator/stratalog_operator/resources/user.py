"""StorageUser: a client of a cluster, its password, its rules (ACLs) and its quotas, in the form that Strimzi's users
know.

The object says all that the cluster keeps about its user: what else is found there is removed, and reported. Only of
quotas others may set some, as long as the object has none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import (
    AS_SET,
    Count,
    Part,
    SecretName,
    ShortName,
    Time,
    checked,
    immutable,
    rule,
    rules,
)

MAX_ACLS = 256
MOST_BYTES = 2**50
"""In a second."""


class SecretKeyRef(Part):
    """A key of a Secret in the same namespace."""

    name: SecretName = Field(description="Name of the Secret.")
    key: str = Field(
        min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$", description="Key of the Secret that has the value."
    )


class PasswordSource(Part):
    """Where a password comes from."""

    secret_key_ref: SecretKeyRef = Field(
        description="Key of a Secret that has the password. Its annotation stratalog.dev/password-of names this object."
    )


class Password(Part):
    """A password that a person or another program chose."""

    value_from: PasswordSource = Field(description="Where the password comes from.")


class Authentication(Part):
    """How the user proves who it is."""

    model_config = checked(
        rule(
            "self.type == 'scram-sha-512' || !has(self.password)",
            "authentication: password is only for type scram-sha-512",
        ),
        rule(
            "self.type in ['scram-sha-512', 'tls'] || !has(self.rotateAfterDays)",
            "authentication: rotateAfterDays is only for types scram-sha-512 and tls",
        ),
        rule(
            "!(has(self.password) && has(self.rotateAfterDays))",
            "authentication: rotateAfterDays is for a generated password: who gives one (password) also renews it",
        ),
    )
    type: Literal["scram-sha-512", "tls", "tls-external", "oauth"] = Field(
        description="scram-sha-512: a password, in the Secret with the name of this object. tls: a client certificate "
        "that the operator issues, in that Secret. tls-external: a client certificate from elsewhere whose subject is "
        "CN=NAME. oauth: a token from elsewhere."
    )
    password: Password | None = Field(
        default=None, description="Password to use. Default: the operator generates one of 32 characters."
    )
    rotate_after_days: int | None = Field(
        default=None,
        ge=1,
        le=3650,
        description="Age after which the operator generates another password, or issues another certificate with "
        "another key. Default: never a password; a certificate before its end.",
    )


class AclResource(Part):
    """What a rule is about."""

    model_config = checked(
        rule(
            "(self.type == 'cluster') != has(self.name)",
            "acls: a resource has a name, * for all; only the type cluster has none",
        ),
    )
    type: Literal["topic", "group", "cluster", "transactionalId"] = Field(description="Type of the resource.")
    name: str | None = Field(
        default=None, min_length=1, max_length=512, description="Name, or prefix of names; * for all. Not for cluster."
    )
    pattern_type: Literal["literal", "prefix"] = Field(
        default="literal", description="Whether the name is meant as it is, or as the prefix of names."
    )


class AclRule(Part):
    """Operations that are allowed or denied on one resource."""

    type: Literal["allow", "deny"] = Field(default="allow", description="A deny wins over every allow.")
    resource: AclResource = Field(description="What the rule is about.")
    host: str = Field(
        default="*", min_length=1, max_length=253, description="Address from which the user connects; * for all."
    )
    operations: Annotated[
        tuple[
            Literal[
                "Read",
                "Write",
                "Create",
                "Delete",
                "Alter",
                "Describe",
                "ClusterAction",
                "AlterConfigs",
                "DescribeConfigs",
                "IdempotentWrite",
                "All",
            ],
            ...,
        ],
        Field(min_length=1, max_length=11, json_schema_extra=AS_SET),
    ] = Field(description="Operations of Kafka.")


class Authorization(Part):
    """What the user may do."""

    type: Literal["simple"] = Field(description="simple: the rules (ACLs) below.")
    acls: Annotated[tuple[AclRule, ...], Field(max_length=MAX_ACLS)] = Field(
        default=(), description="All rules of the user. What they do not allow, the user may not do."
    )


class Quotas(Part):
    """What the user may use of each storage node in a second, with all its clients. Absent fields set no limit."""

    producer_byte_rate: int | None = Field(
        default=None, ge=1, le=MOST_BYTES, description="Bytes of Produce requests in a second."
    )
    consumer_byte_rate: int | None = Field(
        default=None, ge=1, le=MOST_BYTES, description="Bytes of answers to Fetch in a second."
    )
    request_percentage: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Time that requests take, in percent of a second; a node has 100.",
    )
    controller_mutation_rate: float | None = Field(
        default=None,
        ge=0.001,
        le=1_000_000,
        description="Partitions that the user creates or deletes in a second, such as 0.5.",
    )


class StorageUserSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "has(self.userName) == has(oldSelf.userName)",
            "userName cannot be added or removed: create another StorageUser",
        ),
    )
    cluster_ref: ShortName = Field(
        description="StorageCluster of the user; fixed.",
        json_schema_extra=immutable("clusterRef", "create another StorageUser"),
    )
    user_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        pattern="^[A-Za-z0-9._@:/=+ -]+$",
        description="Name of the user in the cluster; fixed. Default: the name of this object.",
        json_schema_extra=rules(
            rule("self == oldSelf", "userName cannot be changed: create another StorageUser with that name"),
            rule(
                "!self.startsWith('CN=')",
                "userName has no CN=: authentication.type tls and tls-external say that it is of a certificate",
            ),
            rule("self != 'ANONYMOUS'", "ANONYMOUS is every client that does not log in: it cannot be one user"),
        ),
    )
    authentication: Authentication | None = Field(
        default=None, description="How the user logs in. Default: not by a password of this cluster."
    )
    authorization: Authorization | None = Field(
        default=None, description="What the user may do. Default: nothing (no rules)."
    )
    quotas: Quotas | None = Field(
        default=None,
        description="What the user may use of each storage node. Default: quotas of the user are not managed by this "
        "object.",
    )


class StorageUserStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    principal: str = Field(default="", max_length=300, description="The user as rules and super.users name it.")
    quotas_of: str = Field(
        default="", max_length=300, description="User whose quotas are those of this object; empty: it has none."
    )
    secret: str = Field(
        default="", max_length=253, description="Secret with password and sasl.jaas.config, or user.crt and user.key."
    )
    rotated_at: Time | None = Field(
        default=None, description="When the password was generated, or the certificate issued."
    )
    rotates_at: Time | None = Field(default=None, description="When the operator generates the next one.")
    applied_generation: int = Field(
        default=0, ge=0, description="Generation of the spec that the cluster has had as a whole."
    )
    rules: Count = Field(default=0, description="Number of rules (ACLs) that the cluster keeps of this user.")
