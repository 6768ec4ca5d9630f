"""What the commands of the meta service change, as the audit log says it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stratalog.machines.audit.commands import AUDITED, NOT_AUDITED, changes_of, error_name, outcome_of
from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome
from stratalog.machines.sasl.scram import credential_from
from stratalog.model.commands.mount_commands import BeginMount, CreateMount, EndMount, MountCut, MoveMount
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.rights_commands import (
    AlterCredentials,
    AlterQuotas,
    CreateRules,
    DeletedRules,
    DeleteRules,
)
from stratalog.model.commands.table_commands import (
    COMMANDS,
    AddShards,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    SealUnclean,
)
from stratalog.model.errors import Conflict, Forbidden, InvalidRequest, NotFound, OutcomeUnknown
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.mounts import MountMode
from stratalog.model.quotas import QuotaAlteration, QuotaEntity
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import CredentialName, ScramMechanism, UserCredential

ID = UUID(int=7)
RULE = Rule(Resource(ResourceType.TOPIC, "orders"), "User:alice", "*", Operation.READ, Permission.ALLOW)
OTHER = Rule(Resource(ResourceType.GROUP, "g", PatternType.PREFIXED), "User:bob", "h", Operation.ALL, Permission.DENY)


def changes(command: Any, answer: Any = None, error: BaseException | None = None) -> list[Change]:
    return [change for change, _ in changes_of(command, answer, error, lambda _: "orders")]


def test_each_command_that_may_be_asked_for_is_audited_or_said_not_to_be() -> None:
    assert AUDITED.keys() | NOT_AUDITED == set(COMMANDS)
    assert not AUDITED.keys() & NOT_AUDITED


def test_commands_about_topics_name_the_topic_that_they_change() -> None:
    assert changes(CreateTopic("orders", 3, 2, {"retention.ms": "1"})) == [
        Change("CreateTopic", "TOPIC", "orders", {"shards": 3, "replication_factor": 2, "settings": ["retention.ms"]})
    ]
    assert changes(DeleteTopic(ID)) == [Change("DeleteTopic", "TOPIC", "orders", {"topic_id": str(ID)})]
    assert changes(AddShards(ID, 4)) == [Change("AddShards", "TOPIC", "orders", {"topic_id": str(ID), "shards": 4})]
    altered = AlterTopic(ID, {"a": "2", "b": "1"}, expected={"a": "1", "b": "1", "c": "3"})
    assert changes(altered) == [
        Change("AlterTopic", "TOPIC", "orders", {"topic_id": str(ID), "settings": ["a", "c"]})
    ], "b stays as it is"
    (change,) = changes(SealUnclean(SegmentKey(ID, 1, 2, 3)))
    assert (change.action, change.resource, change.details["shard"]) == ("SealUnclean", "orders", 1)


def test_commands_about_nodes_and_mounts_name_them() -> None:
    assert changes(RetireNode(4, force_storage_id="d"))[0].details["is_forced"] is True
    assert [(one.action, one.resource_type, one.resource) for command in (
        RetireNode(4),
        CancelRetirement(4),
        BeginMount(4, "d", MountMode.VOLUME),
        CreateMount("m", ("orders",), 0, 1),
        MountCut("m", ()),
        MoveMount("m", 2),
        EndMount("m"),
    ) for one in changes(command)] == [
        ("RetireNode", "NODE", "4"),
        ("CancelRetirement", "NODE", "4"),
        ("BeginMount", "NODE", "4"),
        ("CreateMount", "MOUNT", "m"),
        ("MountCut", "MOUNT", "m"),
        ("MoveMount", "MOUNT", "m"),
        ("EndMount", "MOUNT", "m"),
    ]  # fmt: skip


def test_each_rule_stands_for_itself_with_its_own_outcome() -> None:
    refused = InvalidRequest("no")
    found = list(changes_of(CreateRules((RULE, OTHER)), (RULE, refused), None, str))
    assert [(one.resource_type, one.resource, why) for one, why in found] == [
        ("TOPIC", "orders", None),
        ("GROUP", "g", refused),
    ]
    assert found[1][0].details == {
        "pattern": "PREFIXED",
        "principal": "User:bob",
        "host": "h",
        "operation": "ALL",
        "permission": "DENY",
    }


def test_a_deletion_names_each_rule_that_went_and_no_filter_that_found_none() -> None:
    command = DeleteRules((RuleFilter(), RuleFilter(host="h"), RuleFilter(name="x")))
    refused = InvalidRequest("no")
    found = list(changes_of(command, (DeletedRules((RULE, OTHER)), DeletedRules(()), refused), None, str))
    assert [(one.resource, "filter" in one.details, why) for one, why in found] == [
        ("orders", False, None),
        ("g", False, None),
        ("x", True, refused),
    ]


def test_a_failed_command_has_its_error_for_everything_that_it_asked_for() -> None:
    lost = OutcomeUnknown("no answer")
    for command, count in ((CreateRules((RULE, OTHER)), 2), (DeleteRules((RuleFilter(),)), 1), (DeleteTopic(ID), 1)):
        found = list(changes_of(command, None, lost, str))
        assert [why for _, why in found] == [lost] * count


def test_no_line_about_a_user_shows_a_key_a_salt_or_their_names() -> None:
    salt = b"the-salt-of-alice"
    for mechanism in ScramMechanism:
        password = (b"salted-password-" * 4)[: mechanism.key_bytes]
        credential = credential_from(mechanism, password, salt, 4096)
        command = AlterCredentials(
            (CredentialName("bob", mechanism),), (UserCredential("alice", mechanism, credential),)
        )
        found = list(changes_of(command, (None, NotFound("x")), None, str))
        assert [(one.action, one.resource, error_name(why)) for one, why in found] == [
            ("DeleteUserScramCredentials", "bob", ""),
            ("SetUserScramCredentials", "alice", "NotFound"),
        ]
        for change, _ in found:
            text = AuditLine(0, Asker("", ""), change, Outcome.DONE).as_json("c", "p")
            secrets = (password, salt, credential.stored_key, credential.server_key)
            assert not any(secret.hex() in text or repr(secret)[2:-1] in text for secret in secrets)


def test_quotas_name_the_entity_that_they_limit() -> None:
    refused = InvalidRequest("no")
    entities = (QuotaEntity(user="alice", client_id=""), QuotaEntity(ip="10.0.0.7"))
    command = AlterQuotas(tuple(QuotaAlteration(entity, ()) for entity in entities))
    found = list(changes_of(command, (None, refused), None, str))
    assert [(one.resource, why) for one, why in found] == [
        ("user=alice, client-id=<default>", None),
        ("ip=10.0.0.7", refused),
    ]


def test_no_name_makes_an_entity_of_quotas_look_like_another_one() -> None:
    entities = (
        QuotaEntity(user="a, client-id=b"),
        QuotaEntity(user="a", client_id="b"),
        QuotaEntity(user=""),
        QuotaEntity(user="<default>"),
    )
    command = AlterQuotas(tuple(QuotaAlteration(entity, ()) for entity in entities))
    assert [one.resource for one in changes(command, (None,) * 4)] == [
        'user="a, client-id=b"',
        "user=a, client-id=b",
        "user=<default>",
        'user="<default>"',
    ]


def test_a_command_of_a_node_says_which_node_sent_it() -> None:
    (change,) = changes(CreateTopic("orders", 1, 1, caller=Life(3, 9)))
    assert change.details["node"] == 3


@pytest.mark.parametrize(
    "error, outcome, name",
    [
        (None, Outcome.DONE, ""),
        (Conflict("x"), Outcome.FAILED, "Conflict"),
        (Forbidden("x"), Outcome.DENIED, "Forbidden"),
        (OutcomeUnknown("x"), Outcome.UNKNOWN, "OutcomeUnknown"),
        (KeyError("a fault"), Outcome.UNKNOWN, "KeyError"),
    ],
)
def test_only_our_refusals_prove_that_nothing_was_done(
    error: BaseException | None, outcome: Outcome, name: str
) -> None:
    assert (outcome_of(error), error_name(error)) == (outcome, name)
