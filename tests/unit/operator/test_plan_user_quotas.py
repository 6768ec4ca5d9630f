"""Quotas of users scene by scene: what the cluster keeps, whose they are, and what is left when an object goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.quotas import QuotaLimits
from stratalog_operator.plan.news import of_actions
from stratalog_operator.plan.whole import plan
from support.operator_user_scenes import delete_user, edit_user, users_world
from support.operator_users import storage_user
from support.operator_world import World, kinds_of

SLOW = {"producerByteRate": 1024, "consumerByteRate": 2048}
IS_SLOW = QuotaLimits(1024.0, 2048.0)
BY_HAND = QuotaLimits(request_percentage=50.0)
CERTIFICATE = {"type": "tls-external"}


def _has(one: World, name: str = "alice") -> tuple[str, dict[str, QuotaLimits]]:
    """Whose quotas the object owns, and all quotas."""
    return one.users[name].status.quotas_of, one.kept.quotas


def _ready(one: World) -> tuple[str, str]:
    told = one.condition("StorageUser", "alice", "Ready")
    return told.status, told.message


def test_a_user_has_the_quotas_of_its_object_in_kafkas_keys_and_then_nothing_is_written() -> None:
    given = {**SLOW, "requestPercentage": 55, "controllerMutationRate": 0.5}
    one = users_world(storage_user(quotas=given))

    assert _has(one) == ("alice", {"alice": QuotaLimits(1024.0, 2048.0, 55.0, 0.5)})
    assert _ready(one)[0] == "True" and one.is_quiet()


def test_a_new_user_gets_them_in_the_pass_that_gives_it_its_password() -> None:
    one = users_world()
    one.users["alice"] = storage_user(quotas=SLOW)
    first, second = one.reconcile(), one.reconcile()

    assert (kinds_of(first), kinds_of(second)) == (["AddFinalizer"], ["PutPassword", "PutQuotas"])


def test_a_user_that_logs_in_by_a_certificate_has_them_by_its_subject() -> None:
    one = users_world(storage_user(authentication=CERTIFICATE, quotas=SLOW))

    assert _has(one) == ("CN=alice", {"CN=alice": IS_SLOW})


def test_a_limit_that_the_object_does_not_have_any_more_is_removed_without_a_warning() -> None:
    one = users_world(storage_user(quotas=SLOW))
    edit_user(one, quotas={"consumerByteRate": 4096})
    made = one.reconcile()

    assert one.kept.quotas == {"alice": QuotaLimits(consumer_byte_rate=4096.0)} and not list(of_actions(made))


@pytest.mark.fault("rule-made-by-hand")
def test_a_limit_that_a_person_set_by_hand_is_replaced_and_named_in_a_warning() -> None:
    one = users_world(storage_user(quotas=SLOW))
    one.kept.quotas |= {"alice": replace(IS_SLOW, producer_byte_rate=4096.0, request_percentage=50.0), "bob": BY_HAND}
    (told,) = of_actions(one.reconcile())

    assert one.kept.quotas == {"alice": IS_SLOW, "bob": BY_HAND}, "what is another user's is not looked at"
    assert (told.reason, told.is_warning) == ("QuotasReplaced", True)
    assert "producer_byte_rate 4,096, now 1,024, request_percentage 50, which is removed" in told.words


def test_limits_that_a_person_removed_by_hand_are_set_again_without_a_warning() -> None:
    one = users_world(storage_user(quotas=SLOW))
    one.kept.quotas.clear()
    made = one.reconcile()

    assert one.kept.quotas == {"alice": IS_SLOW} and not list(of_actions(made))


def test_an_object_without_quotas_leaves_those_that_others_set_also_when_it_is_deleted() -> None:
    one = users_world()
    one.kept.quotas["alice"] = BY_HAND
    one.users["alice"] = storage_user()
    one.settle()
    assert _has(one) == ("", {"alice": BY_HAND})
    delete_user(one)
    one.settle()

    assert not one.users and one.kept.quotas == {"alice": BY_HAND}


def test_an_object_whose_quotas_are_taken_out_removes_what_it_set_and_nothing_later() -> None:
    one = users_world(storage_user(quotas=SLOW))
    edit_user(one, quotas=None)
    one.settle()
    assert _has(one) == ("", {})
    one.kept.quotas["alice"] = BY_HAND
    one.settle()

    assert one.kept.quotas == {"alice": BY_HAND}


def test_empty_quotas_leave_the_user_none() -> None:
    one = users_world(storage_user(quotas={}))
    one.kept.quotas["alice"] = BY_HAND
    one.settle()

    assert _has(one) == ("alice", {})


@pytest.mark.parametrize("killed_after", range(8))
@pytest.mark.parametrize("is_deleted", [False, True], ids=["taken-out", "deleted"])
def test_quotas_that_were_given_to_a_user_are_removed_wherever_the_operator_is_killed(
    killed_after: int, is_deleted: bool
) -> None:
    one = users_world(storage_user())
    edit_user(one, quotas=SLOW)
    _run_until_killed(one, killed_after)
    if is_deleted:
        delete_user(one)
    else:
        edit_user(one, quotas=None)
    _run_until_killed(one, killed_after)
    one.settle()

    assert one.kept.quotas == {} and ("alice" not in one.users) == is_deleted


@pytest.mark.parametrize("killed_after", range(8))
def test_a_change_of_the_login_moves_the_quotas_and_touches_no_others_wherever_it_is_interrupted(
    killed_after: int,
) -> None:
    one = users_world(storage_user(quotas=SLOW))
    edit_user(one, authentication=CERTIFICATE)
    _run_until_killed(one, killed_after)
    one.settle()
    assert _has(one) == ("CN=alice", {"CN=alice": IS_SLOW})
    one.kept.quotas["alice"] = BY_HAND
    delete_user(one)
    one.settle()

    assert not one.users and one.kept.quotas == {"alice": BY_HAND}


def test_quotas_that_come_together_with_another_login_touch_none_of_the_former_principal() -> None:
    one = users_world(storage_user())
    one.kept.quotas["alice"] = BY_HAND
    edit_user(one, authentication=CERTIFICATE, quotas=SLOW)
    one.settle()

    assert _has(one) == ("CN=alice", {"alice": BY_HAND, "CN=alice": IS_SLOW})


def test_a_younger_object_of_the_same_user_removes_no_quotas_of_the_older_one() -> None:
    older = storage_user("older", 1, userName="alice", quotas=SLOW)
    one = users_world(older, storage_user("younger", 2, userName="alice", quotas={"requestPercentage": 5}))
    delete_user(one, "younger")
    one.settle()

    assert set(one.users) == {"older"} and one.kept.quotas == {"alice": IS_SLOW}


def test_a_deleted_user_goes_when_its_quotas_are_seen_to_be_gone() -> None:
    one = users_world(storage_user(authentication=None, quotas=SLOW))
    delete_user(one)

    assert kinds_of(one.reconcile()) == ["PutQuotas"] and one.kept.quotas == {}
    assert kinds_of(one.reconcile()) == ["DropFinalizer"] and not one.users


def _without_quotas(one: World) -> Any:
    """As a meta service that is older than the operator answers."""
    seen = one.observe()
    assert seen.meta is not None and seen.meta.rights is not None
    rights = replace(seen.meta.rights, quotas=None)
    return plan(replace(seen, meta=replace(seen.meta, rights=rights)))


def test_a_service_that_does_not_list_quotas_is_not_taken_for_one_that_has_none() -> None:
    one = users_world(storage_user(quotas=SLOW))
    edit_user(one, quotas={"producerByteRate": 1})
    made = _without_quotas(one)
    assert not made.actions and "older than this operator" in str(made.statuses["StorageUser", "alice"])
    delete_user(one)

    assert "DropFinalizer" not in kinds_of(_without_quotas(one).actions)


def _run_until_killed(one: World, killed_after: int) -> None:
    """Passes until the operator is killed after that many writes, or there is nothing left to do."""
    one.dies_after = one.writes + killed_after
    for _ in range(5):
        if one.dies_after is not None:
            one.reconcile()
    one.dies_after = None
