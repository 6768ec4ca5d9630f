"""Users scene by scene: which password and which rules the cluster keeps of them, and what is left when they go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import CredentialName, ScramMechanism
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.declared.users import plan_user
from stratalog_operator.plan.news import of_actions
from stratalog_operator.plan.observed import Unread
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.names import FINALIZER
from support.operator_user_scenes import annotate_user, delete_user, edit_user, users_world
from support.operator_users import SmallSecret, acl, may, storage_user
from support.operator_world import World, kinds_of

ORDERS = Resource(ResourceType.TOPIC, "orders")
READ = Rule(ORDERS, "User:alice", "*", Operation.READ, Permission.ALLOW)
BY_HAND = Rule(ORDERS, "User:alice", "*", Operation.DELETE, Permission.ALLOW)
OF_BOB = Rule(ORDERS, "User:bob", "*", Operation.READ, Permission.ALLOW)


def _conditions(one: World, name: str = "alice") -> dict[str, tuple[str, str]]:
    return {told.type: (told.status, told.reason) for told in one.users[name].status.conditions}


def _message(one: World, kind: str, name: str = "alice") -> str:
    return one.condition("StorageUser", name, kind).message


# A password -----------------------------------------------------------------------------------------------------------
def test_a_user_has_a_password_of_its_own_and_its_rules_and_then_nothing_is_written() -> None:
    one = users_world(storage_user(authorization=may(acl("orders", "Read"))))

    assert one.kept.logs_in_with == {"alice": one.kept.secrets["alice"].password}
    assert one.kept.rules == {READ}
    status = one.users["alice"].status
    assert (status.secret, status.principal, status.rules) == ("alice", "User:alice", 1)
    assert _conditions(one) == {
        "Ready": ("True", "Kept"),
        "Reconciled": ("True", "Applied"),
        "Progressing": ("False", "NothingUnderWay"),
        "Conflict": ("False", "HasItsUser"),
    }
    assert one.is_quiet()


def test_nothing_is_made_before_the_finalizer_is_there() -> None:
    one = users_world()
    one.users["alice"] = storage_user(authorization=may(acl()))
    first, second = one.reconcile(), one.reconcile()

    assert kinds_of(first) == ["AddFinalizer"]
    assert kinds_of(second) == ["PutPassword", "MakeRules"]


@pytest.mark.fault("operator-killed-secret-credential")
@pytest.mark.parametrize("killed_after", range(6))
def test_an_operator_that_is_killed_between_any_two_writes_ends_with_one_password_that_is_right(
    killed_after: int,
) -> None:
    one = users_world()
    one.users["alice"] = storage_user(authorization=may(acl()))
    one.reconcile()
    one.reconcile(killed_after=killed_after)
    one.settle()

    assert one.kept.logs_in_with == {"alice": one.kept.secrets["alice"].password}
    assert one.kept.rules == {READ} and one.is_quiet()


@pytest.mark.fault("rule-made-by-hand")
def test_a_password_that_others_gave_the_user_in_the_cluster_is_replaced_by_that_of_the_secret() -> None:
    one = users_world(storage_user())
    name = CredentialName("alice", ScramMechanism.SCRAM_SHA_512)
    one.kept.credentials[name], one.kept.logs_in_with["alice"] = "another-salt", "another"
    one.settle()

    assert one.kept.logs_in_with == {"alice": one.kept.secrets["alice"].password}


def test_a_second_password_by_another_mechanism_is_taken_away() -> None:
    one = users_world(storage_user())
    one.kept.credentials[CredentialName("alice", ScramMechanism.SCRAM_SHA_256)] = "salt"
    one.settle()

    assert set(one.kept.credentials) == {CredentialName("alice", ScramMechanism.SCRAM_SHA_512)}


def test_a_password_that_is_changed_in_the_secret_is_the_one_that_the_cluster_takes() -> None:
    one = users_world(storage_user())
    one.kept.edit_secret("alice", password="chosen by hand")
    one.settle()

    assert one.kept.logs_in_with == {"alice": "chosen by hand"}


def test_a_secret_that_is_deleted_is_made_again_with_another_password() -> None:
    one = users_world(storage_user())
    first = one.kept.secrets.pop("alice").password
    one.settle()

    assert one.kept.logs_in_with["alice"] == one.kept.secrets["alice"].password != first


@pytest.mark.fault("secret-of-others-user")
def test_a_secret_of_others_is_never_written() -> None:
    one = users_world()
    theirs = SmallSecret("their-uid", 1, "theirs", owner="")
    one.kept.secrets["alice"] = theirs
    one.users["alice"] = storage_user()
    one.settle()

    assert one.kept.secrets["alice"] == theirs and one.kept.credentials == {}
    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert _conditions(one)["Ready"] == ("False", "NotThere")
    assert "does not belong to this StorageUser" in _message(one, "Reconciled")


def _given(name: str = "chosen", key: str = "pw") -> dict[str, Any]:
    reference = {"secretKeyRef": {"name": name, "key": key}}
    return {"type": "scram-sha-512", "password": {"valueFrom": reference}}


def test_a_given_password_is_used_and_copied_and_follows_its_secret() -> None:
    one = users_world()
    one.kept.given["chosen"] = "first"
    one.users["alice"] = storage_user(authentication=_given())
    one.settle()
    first = dict(one.kept.logs_in_with)
    one.kept.given["chosen"] = "second"
    one.settle()

    assert first == {"alice": "first"} and one.kept.logs_in_with == {"alice": "second"}
    assert one.kept.secrets["alice"].password == "second"


def test_a_user_whose_given_password_is_gone_goes_on_with_the_last_one_and_says_so() -> None:
    one = users_world()
    one.kept.given["chosen"] = "first"
    one.users["alice"] = storage_user(authentication=_given(), authorization=may(acl()))
    one.settle()
    del one.kept.given["chosen"]
    edit_user(one, authorization=may(acl("orders", "Write")))
    one.settle()

    assert one.kept.logs_in_with == {"alice": "first"}
    assert {rule.operation for rule in one.kept.rules} == {Operation.WRITE}, "its rules follow all the same"
    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert _conditions(one)["Ready"] == ("True", "Kept")


# Rotation -------------------------------------------------------------------------------------------------------------
def test_a_word_of_a_person_makes_one_other_password_and_another_word_makes_another() -> None:
    one = users_world(storage_user())
    passwords = [one.kept.secrets["alice"].password]
    for word in ("june", "june", "july"):
        annotate_user(one, rotate=word)
        one.settle()
        passwords.append(one.kept.secrets["alice"].password)
        assert one.kept.logs_in_with["alice"] == passwords[-1]

    first, second, same, third = passwords
    assert second == same and len({first, second, third}) == 3


@pytest.mark.parametrize("killed_after", range(4))
def test_an_operator_that_is_killed_while_it_rotates_rotates_once(killed_after: int) -> None:
    one = users_world(storage_user())
    annotate_user(one, rotate="june")
    one.reconcile(killed_after=killed_after)
    one.settle()

    assert sum(isinstance(done, act.PutPassword) for done in one.done) == 1
    assert one.kept.logs_in_with["alice"] == one.kept.secrets["alice"].password


def test_a_password_is_renewed_when_it_is_as_old_as_the_object_says_and_the_status_says_when() -> None:
    one = users_world(storage_user(authentication={"type": "scram-sha-512", "rotateAfterDays": 30}))
    first = one.kept.secrets["alice"]
    due = one.users["alice"].status.rotates_at
    assert due is not None and due.startswith("2013-01-31T")
    one.kept.secrets["alice"] = replace(first, rotated_at="2012-12-02T23:00:00Z")
    one.settle()

    assert one.kept.secrets["alice"].password == first.password, "29 days and some hours are not 30"
    one.kept.secrets["alice"] = replace(first, rotated_at="2012-12-01T23:00:00Z")
    one.settle()
    assert one.kept.secrets["alice"].password != first.password
    assert one.kept.logs_in_with["alice"] == one.kept.secrets["alice"].password


@pytest.mark.parametrize("note", ["yesterday", "9999-12-31T00:00:00Z"])
def test_a_password_of_unknown_age_is_renewed_once(note: str) -> None:
    one = users_world(storage_user(authentication={"type": "scram-sha-512", "rotateAfterDays": 30}))
    one.kept.edit_secret("alice", rotated_at=note)
    one.settle()

    assert [made.source for made in one.done if isinstance(made, act.PutPassword)] == [act.PasswordSource.GENERATED]


def test_that_a_password_was_renewed_is_an_event_without_the_password() -> None:
    one = users_world(storage_user())
    annotate_user(one, rotate="june")
    (told,) = of_actions(one.reconcile())

    assert (told.kind, told.name, told.reason, told.is_warning) == ("StorageUser", "alice", "PasswordRotated", False)
    assert one.kept.secrets["alice"].password not in repr(told)


# Rules ----------------------------------------------------------------------------------------------------------------
def test_rules_are_those_of_strimzi_in_kafkas_words() -> None:
    acls = (
        {"resource": {"type": "topic", "name": "a-", "patternType": "prefix"}, "operations": ["Describe", "Read"]},
        {"resource": {"type": "group", "name": "*"}, "operations": ["Read"], "host": "10.0.0.7"},
        {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"], "type": "deny"},
        {"resource": {"type": "transactionalId", "name": "tx"}, "operations": ["All"]},
    )
    one = users_world(storage_user(authorization=may(*acls)))
    prefixed = Resource(ResourceType.TOPIC, "a-", PatternType.PREFIXED)
    cluster = Resource(ResourceType.CLUSTER, "kafka-cluster")
    who = "User:alice"

    assert one.kept.rules == {
        Rule(prefixed, who, "*", Operation.DESCRIBE, Permission.ALLOW),
        Rule(prefixed, who, "*", Operation.READ, Permission.ALLOW),
        Rule(Resource(ResourceType.GROUP, "*"), who, "10.0.0.7", Operation.READ, Permission.ALLOW),
        Rule(cluster, who, "*", Operation.IDEMPOTENT_WRITE, Permission.DENY),
        Rule(Resource(ResourceType.TRANSACTIONAL_ID, "tx"), who, "*", Operation.ALL, Permission.ALLOW),
    }


@pytest.mark.fault("rule-made-by-hand")
def test_a_rule_that_a_person_made_by_hand_is_removed_and_named_in_a_warning() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    one.kept.rules |= {BY_HAND, OF_BOB}
    (told,) = of_actions(one.reconcile())

    assert one.kept.rules == {READ, OF_BOB}, "what is another user's is not looked at"
    assert (told.reason, told.is_warning) == ("RulesRemoved", True)
    assert "allow DELETE on topic orders" in told.words


def test_a_rule_that_the_object_does_not_have_any_more_is_removed_without_a_warning() -> None:
    one = users_world(storage_user(authorization=may(acl("orders", "Read", "Delete"))))
    edit_user(one, authorization=may(acl("orders", "Read")))
    made = one.reconcile()

    assert one.kept.rules == {READ} and not list(of_actions(made))


def test_an_object_without_rules_takes_all_of_them_away() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    edit_user(one, authorization=None)
    one.settle()

    assert one.kept.rules == set()


def test_rules_that_replace_others_are_there_before_those_go() -> None:
    one = users_world(storage_user(authorization=may(acl("orders", "Read"))))
    edit_user(one, authorization=may(acl("or", "Read", resource={"patternType": "prefix"})))

    assert kinds_of(one.reconcile()) == ["MakeRules", "RemoveRules"]


def test_a_user_that_logs_in_by_a_certificate_has_rules_by_its_subject_and_no_password() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    edit_user(one, authentication={"type": "tls-external"})
    one.settle()

    assert {rule.principal for rule in one.kept.rules} == {"User:CN=alice"}
    assert one.kept.credentials == {} and one.users["alice"].status.principal == "User:CN=alice"
    assert one.users["alice"].status.secret == ""


@pytest.mark.parametrize("authentication", [None, {"type": "oauth"}], ids=["none", "oauth"])
def test_a_user_that_logs_in_elsewhere_has_rules_alone(authentication: Any) -> None:
    one = users_world(storage_user(authentication=authentication, authorization=may(acl())))

    assert one.kept.rules == {READ} and one.kept.secrets == {} and one.kept.credentials == {}
    assert _conditions(one)["Ready"] == ("True", "Kept")


def test_a_user_may_have_another_name_than_its_object() -> None:
    one = users_world(storage_user("alice-of-sales", userName="Alice_1", authorization=may(acl())))

    assert {rule.principal for rule in one.kept.rules} == {"User:Alice_1"}
    assert one.kept.logs_in_with == {"Alice_1": one.kept.secrets["alice-of-sales"].password}


OF_CN_ALICE = Rule(ORDERS, "User:CN=alice", "*", Operation.READ, Permission.DENY)
CERTIFICATE = {"type": "tls-external"}


@pytest.mark.parametrize(
    ("authentication", "of_another"),
    [({"type": "scram-sha-512"}, "User:CN=alice"), (CERTIFICATE, "User:alice")],
    ids=["password", "certificate"],
)
def test_rules_of_the_principal_that_a_user_would_have_by_another_login_are_not_its_own(
    authentication: dict[str, str], of_another: str
) -> None:
    """A DENY that was revoked so would give a right."""
    deny = replace(OF_CN_ALICE, principal=of_another)
    one = users_world()
    one.kept.rules.add(deny)
    one.users["alice"] = storage_user(authentication=authentication, authorization=may(acl()))
    one.settle()
    assert deny in one.kept.rules
    delete_user(one)
    one.settle()

    assert not one.users and one.kept.rules == {deny}


@pytest.mark.parametrize("killed_after", range(8))
def test_a_change_of_the_login_leaves_no_rule_behind_wherever_it_is_interrupted_and_taken_back(
    killed_after: int,
) -> None:
    one = users_world(storage_user(authorization=may(acl())))
    before = one.users["alice"].spec
    edit_user(one, authentication=CERTIFICATE)
    one.dies_after = one.writes + killed_after
    for _ in range(4):
        if one.dies_after is not None:
            one.reconcile()
    one.dies_after = None
    one.users["alice"] = replace(one.users["alice"], spec=before, generation=9)
    one.settle()

    assert one.kept.rules == {READ} and one.users["alice"].status.principal == "User:alice"
    assert one.kept.logs_in_with == {"alice": one.kept.secrets["alice"].password}


@pytest.mark.parametrize("killed_after", range(8))
def test_a_user_that_is_deleted_while_its_login_changes_leaves_no_rule_behind(killed_after: int) -> None:
    one = users_world(storage_user(authorization=may(acl())))
    edit_user(one, authentication=CERTIFICATE)
    one.dies_after = one.writes + killed_after
    for _ in range(4):
        if one.dies_after is not None:
            one.reconcile()
    one.dies_after = None
    delete_user(one)
    one.settle()

    assert not one.users and one.kept.rules == set()


def test_an_object_that_makes_the_plan_fail_says_so_and_the_others_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    one = users_world(storage_user("bob", 2), storage_user(authorization=may(acl())))

    def failing(seen: Any, user: Any, owner: Any) -> Any:
        if user.name == "bob":
            raise RuntimeError("not thought of")
        return plan_user(seen, user, owner)

    monkeypatch.setattr("stratalog_operator.plan.whole.plan_user", failing)
    edit_user(one, authorization=None)
    for _ in range(3):
        one.reconcile()

    assert one.kept.rules == set(), "alice's right is revoked"
    assert _conditions(one, "bob")["Reconciled"] == ("False", "Error")
    assert "a fault in the operator (RuntimeError)" in _message(one, "Reconciled", "bob")


# Two objects, deletion, silence ---------------------------------------------------------------------------------------
def test_of_two_objects_of_one_user_the_older_has_it_and_the_younger_takes_nothing_away() -> None:
    one = users_world(
        storage_user("older", 1, userName="alice", authorization=may(acl())),
        storage_user("younger", 2, userName="alice"),
    )
    first = _conditions(one, "younger")
    assert first["Conflict"] == ("True", "OlderHasIt") and first["Ready"] == ("False", "Conflict")
    assert one.kept.rules == {READ} and set(one.kept.secrets) == {"older"}
    delete_user(one, "younger")
    one.settle()
    assert "younger" not in one.users and one.kept.rules == {READ}


def test_the_next_oldest_has_the_user_once_the_older_is_revoked_and_gone() -> None:
    one = users_world(
        storage_user("older", 1, userName="alice", authorization=may(acl())),
        storage_user("younger", 2, userName="alice"),
    )
    delete_user(one, "older")
    one.settle()

    assert set(one.users) == {"younger"} and one.kept.rules == set()
    assert one.kept.logs_in_with == {"alice": one.kept.secrets["younger"].password}


def test_an_older_object_that_cannot_be_read_keeps_its_user() -> None:
    one = users_world(storage_user("younger", 2, userName="alice"))
    seen = one.observe()
    unread = Unread("StorageUser", "older", "u", "spec", created="2013-01-01T00:00:01Z", user_name="alice")
    seen = replace(seen, unread=(unread,))
    made = plan(seen)

    assert not [done for done in made.actions if isinstance(done, act.PutPassword | act.RemoveRules)]
    status: Any = made.statuses["StorageUser", "younger"]
    assert {told.type: told.status for told in status.conditions}["Conflict"] == "True"


def test_a_deleted_user_is_revoked_in_the_first_pass_and_goes_when_nothing_of_it_is_left() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    one.kept.rules |= {BY_HAND, OF_BOB}
    one.kept.credentials[CredentialName("alice", ScramMechanism.SCRAM_SHA_256)] = "salt"
    delete_user(one)
    first = one.reconcile()

    assert one.kept.rules == {OF_BOB} and one.kept.credentials == {}
    assert "alice" in one.users and "DropFinalizer" not in kinds_of(first), "that is seen before it goes"
    assert kinds_of(one.reconcile()) == ["DropFinalizer"] and "alice" not in one.users


@pytest.mark.parametrize("killed_after", range(4))
def test_a_deleted_user_is_revoked_whenever_the_operator_is_killed(killed_after: int) -> None:
    one = users_world(storage_user(authorization=may(acl())))
    delete_user(one)
    one.reconcile(killed_after=killed_after)
    one.settle()

    assert not one.users and not one.kept.credentials and not one.kept.rules


@pytest.mark.fault("user-deleted-meta-silent")
def test_a_deleted_user_waits_for_a_service_that_does_not_answer_however_long_until_a_person_lets_it_go() -> None:
    """Its password may still be valid."""
    one = users_world(storage_user())
    delete_user(one)
    one.is_meta_away = True
    for _ in range(30):
        one.reconcile()
        one.seconds += 3600
    assert one.users["alice"].finalizers == {FINALIZER}
    assert "the password of the user may be valid" in _message(one, "Reconciled")
    annotate_user(one, release_finalizer="true")
    one.reconcile()

    assert not one.users


def test_users_of_a_cluster_that_is_deleted_wait_for_nothing() -> None:
    one = users_world(storage_user(), storage_user("bob", 2))
    one.is_meta_away = True
    delete_user(one)
    one.cluster = replace(one.cluster, is_deleting=True)
    one.reconcile()

    assert "alice" not in one.users and not one.users["bob"].finalizers


def test_silence_changes_nothing_and_is_said() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    one.is_meta_away = True
    edit_user(one, authorization=None)
    one.reconcile()

    assert one.kept.rules == {READ}
    assert _conditions(one)["Ready"] == ("Unknown", "MetaUnreachable")


def test_a_service_that_cannot_be_asked_for_rules_is_not_taken_for_one_that_has_none() -> None:
    one = users_world(storage_user(authorization=may(acl())), storage_user("bob", 2))
    delete_user(one)
    seen = one.observe()
    assert seen.meta is not None
    made = plan(replace(seen, meta=replace(seen.meta, rights=None)))

    assert made.actions == ()
    assert "is older than this operator" in str(made.statuses["StorageUser", "bob"])


def test_a_paused_cluster_revokes_a_deleted_user_and_changes_no_other() -> None:
    one = users_world(storage_user(authorization=may(acl())), storage_user("bob", 2))
    one.annotate_cluster(paused="true")
    edit_user(one, "bob", authorization=may(acl()))
    delete_user(one)
    for _ in range(3):
        one.turn()

    assert set(one.users) == {"bob"} and one.kept.rules == set()
    assert set(one.kept.logs_in_with) == {"bob"}


def test_a_user_that_has_not_changed_costs_no_plan() -> None:
    one = users_world(storage_user(authorization=may(acl())))
    one.kept.rules.clear()
    made = plan(replace(one.observe(), settled_users=frozenset({"alice"})))

    assert made.actions == () and made.statuses == {}
