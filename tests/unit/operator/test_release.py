"""Volumes are released by one proof: the retirement of this node and this disk is done, and no mount needs it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratalog_operator.plan
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog_operator.plan import actions as act
from stratalog_operator.plan import release
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.whole import plan
from support.operator_world import World, kinds_of, settled, world

RELEASES = {"UnguardClaim", "ReleaseClaim", "DeleteClaim", "StopSet"}


def _disk(one: World, node_id: int) -> str:
    return one.members[node_id].storage_id


@pytest.mark.fault("creates-readonlymount-node-lives")
def test_a_volume_of_a_node_that_lives_is_not_mounted_and_the_object_says_why() -> None:
    one = settled(4)
    one.mount_volume("mine", 4, _disk(one, 4))
    one.settle()
    ready, reconciled = (one.condition("ReadOnlyMount", "mine", name) for name in ("Ready", "Reconciled"))

    assert "main-hot-4-vol" not in one.sets
    assert (ready.status, ready.reason) == ("False", "NotRetired")
    assert "node 4 is not retired yet, and uses its volume itself: retire it first" in ready.message
    assert (reconciled.status, reconciled.reason) == ("False", "Waiting")


@pytest.mark.fault("creates-readonlymount-node-lives")
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_deleted_mount_releases_nothing_while_its_node_still_retires(policy: str) -> None:
    """The world fails the test when a guard goes without proof."""
    one = settled(4, spec={"scaleIn": {"mode": "RemountVolume"}, "storageRetention": {"whenScaled": policy}})
    one.mount_volume("mine", 4, _disk(one, 4))
    one.reconcile()
    one.delete_mount("mine")
    one.scale(3)
    while one.records.get(4) is None or one.records[4].step is not RetireStep.RELEASE:
        one.reconcile()
        one.retirements()
        assert one.claims["data-main-hot-4"].is_guarded
        assert "main-hot-4-0" in one.pods

    assert "mine" not in one.mounts, "nothing held the object: it never mounted anything"
    one.settle()
    assert one.claims["data-main-hot-4"].is_guarded, "its mount reads it"
    assert one.pods["main-hot-4-vol-0"].is_ready


def test_a_mount_that_a_person_made_first_serves_beside_nothing_once_the_node_has_left() -> None:
    one = settled(4, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.mount_volume("mine", 4, _disk(one, 4))
    one.scale(3)
    one.settle()
    refused = one.condition("ReadOnlyMount", "mine", "Reconciled")

    assert (refused.status, refused.reason) == ("False", "InvalidSpec")
    assert "ReadOnlyMount main-hot-4 mounts this volume already" in refused.message
    one.delete_mount("mine")
    one.settle()
    assert 4 in one.meta_mounts, "the mount of the other object does not end"
    assert one.claims["data-main-hot-4"].is_guarded


@pytest.mark.parametrize(
    ("node_id", "disk", "words"),
    [(9, "any", "there was never a node 9"), (3, "another", "not another")],
    ids=["unknown node", "another disk"],
)
def test_a_mount_of_what_never_was_is_refused_in_words(node_id: int, disk: str, words: str) -> None:
    one = settled(3)
    one.mount_volume("mine", node_id, disk, "Offload")
    one.settle()
    told = one.condition("ReadOnlyMount", "mine", "Reconciled")

    assert (told.status, told.reason) == ("False", "InvalidSpec") and words in told.message


def test_the_volume_of_a_node_that_left_by_the_bucket_is_not_mounted() -> None:
    one = settled(3, spec={"storageRetention": {"whenScaled": "Retain"}})
    disk = _disk(one, 3)
    one.scale(2)
    one.settle()
    one.mount_volume("mine", 3, disk)
    one.settle()

    assert "retired in mode Offload" in one.condition("ReadOnlyMount", "mine", "Ready").message
    assert "main-hot-3-vol" not in one.sets


# The proof ------------------------------------------------------------------------------------------------------------
def _left(one: World, step: RetireStep, storage_id: str | None = None, **more: Any) -> Observed:
    """Node 3 has left, as the meta service says."""
    disk = _disk(one, 3) if storage_id is None else storage_id
    one.records[3] = Retirement(disk, RetireMode.OFFLOAD, step, 0, 0, **more)
    return one.observe()


@pytest.mark.parametrize("step", [step for step in RetireStep if step is not RetireStep.DONE])
def test_no_step_before_done_proves_anything(step: RetireStep) -> None:
    one = settled(3)

    assert isinstance(release.of_retired_disk(_left(one, step), 3, _disk(one, 3)), release.Refusal)


def test_done_is_a_proof_of_one_disk_alone_and_not_while_it_is_mounted() -> None:
    one = settled(3)
    seen, disk = _left(one, RetireStep.DONE), _disk(one, 3)
    assert isinstance(release.of_retired_disk(seen, 3, disk), release.Grant)
    one.meta_mounts[3] = Mount("tier/3", MountMode.VOLUME, 3, disk, MountState.SERVING, 1, 0)

    assert isinstance(release.of_retired_disk(one.observe(), 3, disk), release.Refusal)
    assert isinstance(release.of_retired_disk(seen, 3, "another"), release.Refusal)
    assert isinstance(release.of_retired_disk(seen, 3, ""), release.Refusal)
    assert isinstance(release.of_retired_disk(replace(seen, meta=None), 3, disk), release.Refusal)


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_claim_with_another_disk_than_the_retired_one_is_kept_under_its_guard(policy: str) -> None:
    one = settled(3, spec={"storageRetention": {"whenScaled": policy}})
    one.scale(2)
    while 3 not in one.records or one.records[3].step is not RetireStep.DONE:
        one.reconcile()
        one.retirements()
    claim = one.claims["data-main-hot-3"]
    one.claims[claim.name] = replace(claim, storage_id="another")
    for _ in range(20):
        one.turn()

    assert one.claims["data-main-hot-3"].is_guarded
    assert not RELEASES & set(kinds_of(one.done))
    assert one.condition("StorageNode", "main-hot-3", "RetireBlocked").status == "True"


@pytest.mark.fault("node-given-force-whenscaled")
@pytest.mark.parametrize(("is_forced", "given_up_count"), [(True, 2), (True, 0), (False, 1)])
def test_a_retirement_by_force_leaves_the_volume_whatever_the_policy_says(is_forced: bool, given_up_count: int) -> None:
    """A person gave up what the disk had; the disk may be healthy, and have the only copy. The force ends when the node
    comes back, and it keeps its records that were given up in files of its own."""
    one = settled(3, spec={"storageRetention": {"whenScaled": "Delete"}})
    one.scale(2)
    while 3 not in one.records or one.records[3].step is not RetireStep.DONE:
        one.reconcile()
        one.retirements()
    one.records[3] = replace(one.records[3], is_forced=is_forced, given_up_count=given_up_count)
    one.settle()
    claim = one.claims["data-main-hot-3"]

    assert claim.is_released and not claim.is_leaving
    (gone,) = one.cluster.status.retired_nodes
    assert (gone.node_id, gone.claim, gone.given_up_ranges) == (3, claim.name, given_up_count)


def test_only_one_module_of_the_plan_releases_volumes() -> None:
    folder = Path(stratalog_operator.plan.__file__).parent
    makers = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RELEASES
    }

    assert makers == {"release.py"}


# Half a guard ---------------------------------------------------------------------------------------------------------
@pytest.mark.fault("claim-half-guarded")
def test_a_claim_with_the_finalizer_alone_is_released_by_the_annotation() -> None:
    """Its note was removed, or a backup kept the finalizer without it: the claim stayed `Terminating` for good."""
    one = settled(3)
    claim = one.claims["data-main-hot-3"]
    half = replace(claim, is_guarded=False, half_guard="finalizer", is_leaving=True, release_word=claim.storage_id)
    for node in (one.nodes["main-hot-3"], None):
        if node is None:
            one.delete_storage_node("main-hot-3")
        seen = replace(one.observe(), claims=(half,))
        (released,) = [action for action in plan(seen).actions if type(action).__name__ in RELEASES]

        assert isinstance(released, act.UnguardClaim)
        assert (released.name, released.keeps_volume) == (claim.name, True)


@pytest.mark.fault("claim-half-guarded")
def test_a_claim_with_the_finalizer_alone_goes_with_its_cluster() -> None:
    one = settled(3)
    for name, claim in one.claims.items():
        one.claims[name] = replace(claim, is_guarded=False, half_guard="finalizer")
    one.cluster = replace(one.cluster, is_deleting=True)
    one.reconcile()
    one.reconcile()

    assert not any(claim.is_held for claim in one.claims.values()) and not one.cluster.finalizers
    assert len(one.claims) == 3


@pytest.mark.fault("claim-half-guarded")
def test_a_claim_that_was_deleted_before_it_was_guarded_keeps_its_volume_and_its_node_can_leave() -> None:
    """Kubernetes gives no finalizer to what is being deleted. The node could never retire, and the next stop of its
    pod deleted the volume."""
    one = settled(4)
    claim = one.claims["data-main-hot-4"]
    one.claims[claim.name] = replace(claim, is_guarded=False, is_leaving=True)
    one.settle()
    told = one.condition("StorageNode", "main-hot-4", "StorageBound")
    assert one.claims[claim.name].half_guard == "volume", "its volume is kept"
    assert "goes as soon as its pod stops; retire the node" in told.message

    one.scale(3)
    one.settle()
    assert one.node_ids() == [1, 2, 3]


# A cluster that is deleted with its volumes ---------------------------------------------------------------------------
@pytest.mark.fault("cluster-deleted-claims-earlier")
@pytest.mark.parametrize("has_answered", [True, False])
def test_a_cluster_that_goes_with_its_volumes_leaves_those_of_an_earlier_cluster(has_answered: bool) -> None:
    """`allow-deletion` names this cluster by its UID, and says nothing of the metadata that its predecessor had."""
    earlier = settled(3)
    one = world(3, spec={"storageRetention": {"whenDeleted": "Delete"}})
    one.claims, one.cluster_id = dict(earlier.claims), "cluster-2"
    one.needed = set(earlier.needed)
    one.is_meta_away = not has_answered
    for _ in range(12):
        one.turn()
    one.annotate_cluster(allow_deletion=one.cluster.uid)
    one.cluster = replace(one.cluster, is_deleting=True)
    one.needed = set(earlier.needed)
    for _ in range(8):
        one.turn()

    assert one.is_gone
    assert {name for name, claim in one.claims.items() if not claim.is_leaving} == set(earlier.claims)
    assert not any(claim.is_held for claim in one.claims.values()), "nothing waits for an operator"
