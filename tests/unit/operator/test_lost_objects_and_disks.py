"""Objects, disks and moments that get lost: each node is represented, and none is stuck for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog_operator.plan import actions as act
from stratalog_operator.plan.news import of_actions
from stratalog_operator.plan.whole import plan
from support.operator_world import World, kinds_of, settled, world

NODE, CLAIM, POD = "main-hot-2", "data-main-hot-2", "main-hot-2-0"
EXCHANGED = "stratalog.dev/disk-lost-ack"


def _is_represented(one: World) -> bool:
    """Each pod of a storage node has its StorageNode."""
    pods = {name.removesuffix("-0") for name in one.pods if name.startswith("main-hot-") and "-vol-" not in name}
    return pods <= one.nodes.keys()


# A claim and its StorageNode, deleted together ------------------------------------------------------------------------
@pytest.mark.fault("storagenode-claim-deleted-command")
def test_a_node_whose_claim_and_object_were_deleted_together_is_there_again_and_can_retire() -> None:
    one = settled(3)
    one.delete_claim(CLAIM)
    one.delete_storage_node(NODE)
    one.settle()

    assert one.node_ids() == [1, 2, 3] and _is_represented(one)
    assert one.claims[CLAIM].is_guarded
    told = one.condition("StorageNode", NODE, "StorageBound")
    assert told.reason == "VolumeLost" and "was deleted and is held back" in told.message
    one.wish_to_retire(NODE)
    one.settle()
    assert one.node_ids() == [1, 3, 4] and _is_represented(one)


def test_a_pod_whose_claim_is_given_up_and_object_deleted_is_still_a_node() -> None:
    one = settled(3)
    claim = one.claims[CLAIM]
    one.delete_claim(CLAIM)
    one._change_claim(CLAIM, claim.uid, release_word=claim.storage_id)
    one.delete_storage_node(NODE)
    one.settle()

    assert one.node_ids() == [1, 2, 3] and _is_represented(one)


def test_a_node_of_which_only_the_stateful_set_is_left_gets_no_empty_claim() -> None:
    """Its disk is gone. The node is represented, and its retirement names what is lost."""
    one = settled(3)
    del one.claims[CLAIM], one.hashes["PersistentVolumeClaim", CLAIM]
    one.crash(POD)
    one.registrations()
    one.delete_storage_node(NODE)
    for _ in range(5):
        one.reconcile()

    assert NODE in one.nodes and CLAIM not in one.claims
    assert one.nodes[NODE].status.identity.storage_id == one.members[2].storage_id
    assert one.condition("StorageNode", NODE, "StorageBound").reason == "VolumeLost"
    one.wish_to_retire(NODE)
    one.needed.discard(one.members[2].storage_id)
    one.settle()
    assert one.node_ids() == [1, 3, 4]


def test_no_node_is_made_while_it_is_unknown_whether_one_without_an_object_has_left() -> None:
    one = settled(3)
    one.delete_storage_node(NODE)
    one.is_meta_away = True
    for _ in range(3):
        one.reconcile()
    assert one.node_ids() == [1, 3]
    one.is_meta_away = False
    one.settle()
    assert one.node_ids() == [1, 2, 3]


# A node that joins while it is stopped --------------------------------------------------------------------------------
@pytest.mark.fault("node-registers-statefulset-scaled")
def test_a_node_that_joins_while_it_is_stopped_because_it_never_joined_leaves_in_order() -> None:
    one = settled(3)
    one.scale(4)
    for _ in range(3):
        one.reconcile()
        one.kubelet()
    assert one.pods["main-hot-4-0"].pod_hash and 4 not in one.members
    one.scale(3)
    while one.sets["main-hot-4"].replicas:
        one.reconcile()
    one.pods["main-hot-4-0"] = replace(one.pods["main-hot-4-0"], is_ready=True)
    one.registrations()  # a moment before its pod ends
    assert 4 in one.members
    one.settle()

    assert one.node_ids() == [1, 2, 3]
    assert [action.node_id for action in one.done if isinstance(action, act.AskRetire)] == [4]
    assert "main-hot-4" not in one.sets and "data-main-hot-4" not in one.claims


# Another disk under the same claim ------------------------------------------------------------------------------------
def _exchange(one: World) -> str:
    """The directory was emptied, say: the node registers with a new disk. Returns the id of the first one."""
    first = one.claims[CLAIM].storage_id
    one.members[2] = replace(one.members[2], storage_id="new-disk")
    return first


@pytest.mark.fault("disk-claim-exchanged-emptied")
def test_a_disk_that_was_exchanged_under_its_claim_is_reported_and_blocks_the_retirement() -> None:
    one = settled(3)
    first = _exchange(one)
    one.settle()
    bound, stalled = (one.condition("StorageNode", NODE, name) for name in ("StorageBound", "Stalled"))

    assert (bound.status, bound.reason) == ("False", "DiskExchanged")
    assert f"kubectl annotate snode {NODE} --overwrite {EXCHANGED}={first}" in stalled.message
    one.wish_to_retire(NODE)
    for _ in range(5):
        one.turn()
    assert one.condition("StorageNode", NODE, "RetireBlocked").reason == "IdentityChanged"
    assert not one.records


@pytest.mark.fault("disk-claim-exchanged-emptied")
def test_a_person_who_gives_the_first_disk_up_lets_the_node_continue_and_retire() -> None:
    one = settled(3)
    first = _exchange(one)
    one.needed.clear()
    one.annotate_node(NODE, disk_lost_ack=first)
    (told,) = of_actions(plan(one.observe()).actions)
    one.settle()

    assert told.reason == "DecisionUsed" and EXCHANGED not in one.nodes[NODE].annotations
    assert one.claims[CLAIM].storage_id == one.nodes[NODE].status.identity.storage_id == "new-disk"
    assert one.condition("StorageNode", NODE, "StorageBound").status == "True"
    one.wish_to_retire(NODE)
    one.settle()
    assert one.node_ids() == [1, 3, 4]


@pytest.mark.parametrize("value", ["true", "new-disk", "another"])
def test_a_word_about_another_disk_changes_nothing_and_is_removed(value: str) -> None:
    one = settled(3)
    first = _exchange(one)
    one.annotate_node(NODE, disk_lost_ack=value)
    one.settle()

    assert one.claims[CLAIM].storage_id == first and EXCHANGED not in one.nodes[NODE].annotations


# Many retired volumes -------------------------------------------------------------------------------------------------
@pytest.mark.fault("nodes-retired-mode-remountvolume")
def test_a_retired_volume_needs_no_tombstone_to_be_left_alone() -> None:
    """Only 32 tombstones are kept: the 33rd retirement made and deleted StorageNodes for ever."""
    one = settled(4, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.scale(2)
    one.settle()
    assert sorted(one.mounts) == ["main-hot-3", "main-hot-4"]
    one.cluster = replace(one.cluster, status=one.cluster.status.model_copy(update={"retired_nodes": ()}))
    one.done.clear()
    for _ in range(5):
        one.turn()

    assert kinds_of(one.done) == []
    one.is_meta_away = True
    one.reconcile()
    assert kinds_of(one.done) == [], "its ReadOnlyMount says so as well"


def test_a_volume_whose_mount_and_object_are_gone_is_released_by_policy_even_without_its_tombstone() -> None:
    one = settled(3, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.scale(2)
    one.settle()
    one.needed.discard(one.meta_mounts.pop(3).storage_id)
    del one.mounts["main-hot-3"]
    one.sets.pop("main-hot-3-vol")
    one.settle()

    assert "data-main-hot-3" not in one.claims and one.node_ids() == [1, 2]


# Objects that are being deleted ---------------------------------------------------------------------------------------
@pytest.mark.fault("storagenode-deletion-held")
@pytest.mark.parametrize("chosen", [False, True])
def test_a_storage_node_whose_deletion_is_held_by_another_program_still_counts(chosen: bool) -> None:
    """`kubectl delete --cascade=foreground` puts a finalizer on it for a while, others do for longer."""
    one = settled(3)
    if chosen:
        one.scale(2)
        one.reconcile()
        one.scale(3)
    name = "main-hot-3"
    one.nodes[name] = replace(one.nodes[name], is_deleting=True)
    for _ in range(5):
        one.turn()
    assert one.node_ids() == [1, 2, 3], "no other node is made in its place"

    one.delete_storage_node(name)
    one.settle()
    assert one.node_ids() == [1, 2, 3] and not one.records


# Metadata that are older than the StorageCluster ----------------------------------------------------------------------
@pytest.mark.fault("cluster-made-again-ids")
@pytest.mark.parametrize("etcd", ["external", "kept claims"])
def test_a_cluster_that_is_made_again_over_its_metadata_gives_no_id_twice(etcd: str) -> None:
    """Its node claims are gone, with their notes. While the meta service starts, nothing else knows the ids."""
    earlier = settled(3)
    one = world(3, spec={"meta": {"external": {"endpoints": ["etcd:2379"]}}} if etcd == "external" else {})
    one.cluster = replace(one.cluster, created="2013-01-01T00:00:30Z")
    if etcd != "external":
        claims = earlier.etcd.claims.values()
        one.etcd.claims = {claim.name: replace(claim, created="2013-01-01T00:00:00Z", member_id="") for claim in claims}
    one.members = {node_id: replace(member, is_alive=False) for node_id, member in earlier.members.items()}
    one.is_meta_away = True
    for _ in range(4):
        one.turn()
    told = one.condition("StorageNodePool", "hot", "Ready")
    assert not one.nodes and not one.claims
    assert "which ids its nodes had" in told.message

    one.is_meta_away = False
    one.settle()
    assert one.node_ids() == [4, 5, 6]
