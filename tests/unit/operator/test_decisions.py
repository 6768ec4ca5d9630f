"""A decision of a person is about one event and is used up by it: what stays on an object decides nothing later."""

from __future__ import annotations

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.retirement import RetireStep, Wait, WaitReason
from stratalog_operator.apply.perform import Performer
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.news import of_actions
from stratalog_operator.plan.whole import plan
from support.meta_requests import RecordedRequests
from support.noted_kubernetes import NotedKubernetes
from support.operator_world import World, kinds_of, settled

NODE, CLAIM = "main-hot-3", "data-main-hot-3"
FORCE = "stratalog.dev/force-retire-ack"


def _lost(one: World) -> None:
    """Node 3 is lost, and is to leave with what only it has."""
    one.scale(2)
    for _ in range(3):
        one.reconcile()
    _away(one)
    one.records[3] = one.records[3].__class__(
        one.records[3].storage_id,
        one.records[3].mode,
        RetireStep.OFFLOAD,
        0,
        0,
        Wait(WaitReason.LAST_COPY_LOST, "no other node has 2 segments", 0),
    )


def _away(one: World) -> None:
    one.crash("main-hot-3-0")
    one.registrations()


def _back(one: World) -> None:
    one.kubelet()
    one.registrations()


def _forces(one: World) -> list[act.AskRetire]:
    return [one_ for one_ in one.done if isinstance(one_, act.AskRetire) and one_.force_storage_id is not None]


def test_what_a_person_has_to_write_to_give_a_disk_up_is_said_with_its_event() -> None:
    one = settled()
    _lost(one)
    one.reconcile()
    disk = one.members[3].storage_id

    told = one.condition("StorageNode", NODE, "RetireBlocked")
    assert f"kubectl annotate snode {NODE} --overwrite {FORCE}={disk}@1" in told.message


def test_a_disk_is_given_up_once_and_the_decision_is_removed() -> None:
    one = settled()
    _lost(one)
    one.annotate_node(NODE, force_retire_ack=f"{one.members[3].storage_id}@1")
    one.reconcile()
    assert one.records[3].is_forced
    made = plan(one.observe())
    (told,) = of_actions(made.actions)
    one.reconcile()

    assert len(_forces(one)) == 1 and FORCE not in one.nodes[NODE].annotations
    assert (told.name, told.reason, told.is_warning) == (NODE, "DecisionUsed", False)


@pytest.mark.fault("gave-lost-node-annotation")
def test_a_node_that_came_back_is_not_given_up_at_its_next_absence() -> None:
    """Also where no pass saw that it was back: the operator was away meanwhile."""
    one = settled()
    _lost(one)
    one.annotate_node(NODE, force_retire_ack=f"{one.members[3].storage_id}@1")
    one.reconcile()
    _back(one)
    assert one.members[3].is_alive and not one.records[3].is_forced
    _away(one)
    made = plan(one.observe())
    (told,) = of_actions(made.actions)
    for _ in range(5):
        one.reconcile()

    assert not one.records[3].is_forced and len(_forces(one)) == 1
    assert FORCE not in one.nodes[NODE].annotations
    assert told.is_warning and told.reason == "DecisionIgnored"
    assert f"{one.members[3].storage_id}@2 now; decide again" in told.words


def test_a_decision_without_its_event_or_about_a_node_that_lives_or_stays_is_removed() -> None:
    one = settled()
    disk = one.members[3].storage_id
    for value, event in ((disk, "lives"), (f"{disk}@0", "lives"), ("another@1", "away"), (f"{disk}@1", "stays")):
        if event != "lives" and one.members[3].is_alive:
            _away(one)
        one.annotate_node(NODE, force_retire_ack=value)
        one.reconcile()
        assert FORCE not in one.nodes[NODE].annotations, (value, event)

    assert not _forces(one) and not one.records


def test_a_decision_waits_while_the_meta_service_is_silent_and_until_the_retirement_is_requested() -> None:
    one = settled()
    one.scale(2)
    one.reconcile()
    _away(one)
    value = f"{one.members[3].storage_id}@1"
    one.annotate_node(NODE, force_retire_ack=value)
    one.is_meta_away = True
    one.reconcile()
    assert one.nodes[NODE].annotations[FORCE] == value
    one.is_meta_away = False
    one.reconcile()
    one.reconcile()
    assert one.records[3].is_forced


@pytest.mark.fault("claim-annotation-releases-deletes")
def test_a_claim_is_not_released_by_an_annotation_from_before_its_deletion() -> None:
    """It would release the last copy the moment that someone deletes the claim by mistake."""
    one = settled()
    claim = one.claims[CLAIM]
    for word in ("true", claim.storage_id):
        one._change_claim(CLAIM, claim.uid, release_word=word)
        (told,) = of_actions(plan(one.observe()).actions)
        assert "is not being deleted" in told.words
        one.reconcile()
        assert one.claims[CLAIM].release_word == ""
    one.delete_claim(CLAIM)
    one.settle()

    assert one.claims[CLAIM].is_guarded
    assert "UnguardClaim" not in kinds_of(one.done)


def test_a_deleted_claim_is_released_only_by_the_name_of_its_disk() -> None:
    one = settled()
    claim = one.claims[CLAIM]
    one.delete_claim(CLAIM)
    one._change_claim(CLAIM, claim.uid, release_word="true")
    (told,) = of_actions(plan(one.observe()).actions)
    one.reconcile()
    assert f"the value is {claim.storage_id}" in told.words and one.claims[CLAIM].is_guarded
    assert f"release-finalizer={claim.storage_id}" in one.condition("StorageNode", NODE, "StorageBound").message

    one._change_claim(CLAIM, claim.uid, release_word=claim.storage_id)
    one.reconcile()
    assert not one.claims[CLAIM].is_guarded


@pytest.mark.fault("api-server-refuses-decision")
async def test_a_decision_stays_while_what_it_asks_for_could_not_be_written() -> None:
    """Before, it was removed and reported as used, and the person had to decide once more."""
    kubernetes = NotedKubernetes()
    kubernetes.refusals["persistentvolumeclaims/data-main-hot-2"] = Unavailable("500")
    note = act.NoteDisk("data-main-hot-2", "u", "disk-b", "cluster-1")
    drop = act.DropDecision("StorageNode", "main-hot-2", "u", "stratalog.dev/disk-lost-ack", True, "disk-a is lost")
    seen = settled().observe()
    done = await Performer(kubernetes, RecordedRequests()).perform(seen, act.Plan((note, drop), {}, 5))
    kubernetes.refusals.clear()
    again = await Performer(kubernetes, RecordedRequests()).perform(seen, act.Plan((note, drop), {}, 5))

    assert (done.undone, again.undone) == ((note, drop), ())
    assert [path.rpartition("/")[2] for method, path in kubernetes.requests if method == "PATCH"] == [
        "data-main-hot-2",
        "data-main-hot-2",
        "main-hot-2",
    ]
