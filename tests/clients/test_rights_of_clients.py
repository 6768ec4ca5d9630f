"""Rules (ACLs) and SCRAM users by the admin clients of confluent-kafka and kafka-python, on a node of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
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
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as Kind
from kafka.errors import NoError, SecurityDisabledError

from support.node_process import NodeProcess

PATIENCE_S = 30
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
EVERYTHING = ACLFilter(
    None,
    None,
    ACLOperation.ANY,
    ACLPermissionType.ANY,
    ResourcePatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY),
)


def binding(
    name: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL, who: str = "User:alice"
) -> AclBinding:
    allow = AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, name, pattern, who, "*", AclOperation.READ, allow)


def matching(name: str | None, pattern: ResourcePatternType = ResourcePatternType.MATCH) -> AclBindingFilter:
    anything = AclOperation.ANY, AclPermissionType.ANY
    return AclBindingFilter(ResourceType.TOPIC, name, pattern, None, None, *anything)


def test_rules_are_created_found_and_deleted_by_librdkafka(start_node: Callable[..., NodeProcess]) -> None:
    node = start_node(settings=GUARDED)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    literal, prefixed = binding("orders"), binding("ord", ResourcePatternType.PREFIXED)
    everyone, other = binding("*", who="User:*"), binding("payments")
    for future in admin.create_acls([literal, prefixed, everyone, other]).values():
        future.result(PATIENCE_S)
    found = admin.describe_acls(matching("orders")).result(PATIENCE_S)
    assert set(found) == {literal, prefixed, everyone}
    assert set(admin.describe_acls(matching(None, ResourcePatternType.ANY)).result(PATIENCE_S)) == {*found, other}
    exact = matching("orders", ResourcePatternType.LITERAL)
    (deleted,) = admin.delete_acls([exact]).values()
    assert set(deleted.result(PATIENCE_S)) == {literal}
    (deleted,) = admin.delete_acls([matching("orders")]).values()
    assert set(deleted.result(PATIENCE_S)) == {prefixed, everyone}
    assert set(admin.describe_acls(matching(None, ResourcePatternType.ANY)).result(PATIENCE_S)) == {other}


def test_rules_outlive_a_kill_of_the_node_and_revoked_ones_do_not_return(
    start_node: Callable[..., NodeProcess],
) -> None:
    node = start_node(settings=GUARDED)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    kept, revoked = binding("kept"), binding("revoked")
    for future in admin.create_acls([kept, revoked]).values():
        future.result(PATIENCE_S)
    (deleted,) = admin.delete_acls([matching("revoked")]).values()
    assert set(deleted.result(PATIENCE_S)) == {revoked}
    node.kill()
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    assert set(admin.describe_acls(matching(None, ResourcePatternType.ANY)).result(PATIENCE_S)) == {kept}


def test_rules_are_created_found_and_deleted_by_kafka_python(start_node: Callable[..., NodeProcess]) -> None:
    node = start_node(settings=GUARDED)
    admin = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    prefixed = ResourcePattern(Kind.GROUP, "team-", ACLResourcePatternType.PREFIXED)
    rule = ACL("User:bob", "10.0.0.1", ACLOperation.DESCRIBE, ACLPermissionType.DENY, prefixed)
    created = admin.create_acls([rule])
    assert created["succeeded"] == [rule] and not created["failed"]
    found, _ = admin.describe_acls(EVERYTHING)
    assert found == [rule]
    ((_, deleted, error),) = admin.delete_acls([EVERYTHING])
    assert deleted == [rule] and error is NoError
    assert admin.describe_acls(EVERYTHING)[0] == []
    admin.close()


def test_without_an_authorizer_rules_are_refused_as_disabled(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in (
        *admin.create_acls([binding("orders")]).values(),
        *admin.delete_acls([matching("orders")]).values(),
    ):
        with pytest.raises(KafkaException) as refused:
            future.result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
    # librdkafka (2.16) passes over this error in the answer to a description.
    python = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    with pytest.raises(SecurityDisabledError):
        python.describe_acls(EVERYTHING)
    python.close()


def test_users_are_made_described_and_deleted_by_librdkafka(start_node: Callable[..., NodeProcess]) -> None:
    node = start_node()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    sha_256, sha_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    made = admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion("alice", ScramCredentialInfo(sha_256, 4_096), b"secret"),
            UserScramCredentialUpsertion("bob", ScramCredentialInfo(sha_512, 8_192), b"secret"),
        ]
    )
    for future in made.values():
        future.result(PATIENCE_S)
    everyone = admin.describe_user_scram_credentials().result(PATIENCE_S)
    infos = {
        user: [(info.mechanism, info.iterations) for info in one.scram_credential_infos]
        for user, one in everyone.items()
    }
    assert infos == {"alice": [(sha_256, 4_096)], "bob": [(sha_512, 8_192)]}
    gone = admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion("alice", sha_256), UserScramCredentialDeletion("carol", sha_256)]
    )
    gone["alice"].result(PATIENCE_S)
    with pytest.raises(KafkaException) as refused:
        gone["carol"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
    (alice,) = admin.describe_user_scram_credentials(["alice"]).values()
    with pytest.raises(KafkaException) as refused:
        alice.result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
