"""What a paused cluster still does: what people deleted goes. And one whose token cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Seen
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from support.operator_world import World, add_pool, kinds_of, settled


def _paused() -> World:
    one = settled(3, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.scale(2)
    one.settle()
    add_pool(one, "cold", 1)
    one.settle()
    spec = TopicStorageSpec.model_validate(
        {
            "clusterRef": "main",
            "topicName": "orders",
            "shards": 1,
            "replicationFactor": 1,
            "minInsyncReplicas": 1,
            "deletionPolicy": "Delete",
        }
    )
    one.topics["orders"] = Seen("orders", "uid-of-orders", spec, TopicStorageStatus())
    one.settle()
    assert "orders" in one.meta_topics and one.topics["orders"].finalizers
    one.annotate_cluster(paused="true")
    one.reconcile()
    one.done.clear()
    return one


def test_a_paused_cluster_changes_nothing_and_rests() -> None:
    one = _paused()
    one.scale(3)
    one.edit_cluster({"image": {"tag": "2"}})
    one.wish_to_retire("main-hot-1")
    for _ in range(5):
        one.turn()

    assert one.done == []


@pytest.mark.fault("paused-cluster-namespace-topic")
def test_a_paused_cluster_can_be_deleted_and_so_can_its_namespace() -> None:
    for is_namespace in (False, True):
        one = _paused()
        if is_namespace:
            one.is_namespace_leaving = True
        else:
            one.cluster = replace(one.cluster, is_deleting=True)
        for _ in range(5):
            one.reconcile()

        assert not one.cluster.finalizers and not any(pool.finalizers for pool in one.pools.values())
        assert not any(claim.is_guarded for claim in one.claims.values())
        assert all(action.keeps_volume for action in one.done if isinstance(action, act.UnguardClaim))


@pytest.mark.fault("paused-cluster-namespace-topic")
def test_topics_and_mounts_that_are_deleted_go_while_their_cluster_is_paused() -> None:
    one = _paused()
    one.topics["orders"] = replace(one.topics["orders"], is_deleting=True, deleted=one.now)
    one.delete_mount("main-hot-3")
    for _ in range(8):
        one.turn()

    assert "orders" not in one.topics and "orders" not in one.meta_topics
    assert "main-hot-3" not in one.mounts and 3 not in one.meta_mounts
    assert set(kinds_of(one.done)) <= {"RemoveTopic", "DropFinalizer", "EndMount", "UnguardClaim", "DeleteClaim"}


def test_a_pool_that_is_deleted_waits_while_its_cluster_is_paused_until_a_person_releases_it() -> None:
    one = _paused()
    one.pools["cold"] = replace(one.pools["cold"], is_deleting=True)
    for _ in range(3):
        one.turn()
    assert one.done == [], "its nodes would have to retire"
    released = {"stratalog.dev/release-finalizer": "true"}
    one.pools["cold"] = replace(one.pools["cold"], annotations=released)
    one.reconcile()

    assert "cold" not in one.pools


def test_a_claim_that_a_person_gives_up_is_released_while_its_cluster_is_paused() -> None:
    one = _paused()
    claim = one.claims["data-main-hot-2"]
    one.delete_claim(claim.name)
    one._change_claim(claim.name, claim.uid, release_word=claim.storage_id)
    one.reconcile()

    assert not one.claims[claim.name].is_guarded


@pytest.mark.fault("claim-annotation-releases-deletes")
def test_a_release_that_names_no_deletion_does_not_wait_in_a_paused_cluster_for_one() -> None:
    one = _paused()
    claim = one.claims["data-main-hot-2"]
    one._change_claim(claim.name, claim.uid, release_word=claim.storage_id)
    one.reconcile()
    one.delete_claim(claim.name)
    one.reconcile()

    assert one.claims[claim.name].is_guarded


# A token that cannot be used ------------------------------------------------------------------------------------------
WORDS = "token of Secret data/main-token holds other characters than a token has"


def test_a_token_that_cannot_be_used_is_reported_and_stops_what_needs_the_meta_service_alone() -> None:
    one = settled(3)
    one.scale(4)
    made = plan(replace(one.observe(is_meta_away=True), token_trouble=WORDS))
    status = made.statuses["StorageCluster", "main"]
    told = {found.type: found for found in status.conditions}  # type: ignore[attr-defined]  # of a StorageCluster

    assert "StorageNode" in {action.key[0] for action in made.actions if isinstance(action, act.Apply)}
    assert (told["Ready"].status, told["Ready"].reason) == ("Unknown", "TokenUnusable") and WORDS in told[
        "Ready"
    ].message
    assert made.again_seconds == 5, "a Secret is not watched"


def test_a_cluster_is_deleted_whatever_its_token_is() -> None:
    one = settled(3)
    one.cluster = replace(one.cluster, is_deleting=True)
    made = plan(replace(one.observe(is_meta_away=True), token_trouble=WORDS))

    assert {"UnguardClaim", "DropFinalizer"} <= set(kinds_of(made.actions))
