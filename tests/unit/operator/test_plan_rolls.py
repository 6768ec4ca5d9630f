"""Which pods a roll stops, in which order, and what it waits for, scene by scene in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.retirement import RetireStep, Wait, WaitReason
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.roll import roll
from stratalog_operator.plan.whole import plan
from support.operator_world import World, kinds_of, settled


def test_a_roll_restarts_all_one_at_a_time_and_the_meta_service_first() -> None:
    """The world itself fails the test if a serving pod is stopped while another does not serve."""
    one = settled(3)
    one.edit_cluster({"image": {"tag": "2"}})
    one.settle()
    stopped = [action.name for action in one.done if isinstance(action, act.StopPod)]

    assert stopped == [
        *(f"main-meta-{number}" for number in range(3)),
        *(f"main-etcd-{number}" for number in range(3)),
        *(f"main-hot-{number}-0" for number in range(1, 4)),
    ]
    assert one.condition("StorageCluster", "main", "Rolling").status == "False"


def test_a_word_restarts_all_and_another_one_a_single_node() -> None:
    one = settled(3)
    one.annotate_cluster(restart="monday")
    one.settle()
    of_cluster = [action.name for action in one.done if isinstance(action, act.StopPod)]
    one.done.clear()
    node = one.nodes["main-hot-2"]
    spec = node.spec.model_copy(update={"restart_requested_at": "tuesday"})
    one.nodes["main-hot-2"] = type(node)(node.name, node.uid, spec, node.status)
    one.settle()

    assert len(of_cluster) == 9, "three of each: meta service, etcd, nodes"
    assert [action.name for action in one.done if isinstance(action, act.StopPod)] == ["main-hot-2-0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"scaleIn": {"stallAfterSeconds": 60}},
        {"storageRetention": {"whenScaled": "Retain"}},
        {"podDisruptionBudget": {"enabled": False}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_of_the_pods_restarts_nobody(changes: dict[str, Any]) -> None:
    one = settled(3)
    before = one.uids()
    one.edit_cluster(changes)
    one.settle()

    assert one.uids() == before


def test_a_roll_stops_at_the_first_bad_pod_and_heals_when_the_change_is_taken_back() -> None:
    one = settled(3)
    good = one.uids()
    one.edit_cluster({"image": {"tag": "bad"}})
    one.reconcile()
    one.bad_makes.add(one.makes["main-meta"])
    one.settle()

    assert one.pods["main-meta-0"].is_failing
    assert {name: uid for name, uid in one.uids().items() if name != "main-meta-0"} == {
        name: uid for name, uid in good.items() if name != "main-meta-0"
    }
    assert "main-meta-0" in one.condition("StorageCluster", "main", "Stalled").message
    one.edit_cluster({"image": {"tag": "latest"}})
    one.settle()
    assert one.condition("StorageCluster", "main", "Stalled").status == "False"
    assert all(pod.is_ready for pod in one.pods.values())


def test_a_pod_that_runs_and_does_not_serve_is_healed_when_the_change_is_taken_back() -> None:
    """Such as a node that keeps more of its disk free than there is."""
    one = settled(3)
    one.edit_cluster({"image": {"tag": "mute"}})
    one.reconcile()
    one.mute_makes.add(one.makes["main-hot-1"])
    one.settle()

    assert not one.pods["main-hot-1-0"].is_ready and not one.pods["main-hot-1-0"].is_failing
    assert "main-hot-1-0" in one.condition("StorageCluster", "main", "Stalled").message
    one.edit_cluster({"image": {"tag": "latest"}})
    one.done.clear()
    one.settle()
    stopped = [action.name for action in one.done if isinstance(action, act.StopPod)]
    assert stopped[0] == "main-hot-1-0", "it has nothing to lose, and the others wait for it"
    assert all(pod.is_ready for pod in one.pods.values())


def test_pods_that_do_not_serve_are_healed_one_at_a_time() -> None:
    one = settled(3)
    for name in ("main-hot-1", "main-hot-2"):
        one.mute_makes.add(one.makes[name])
    one.settle()
    one.edit_cluster({"image": {"tag": "2"}})
    one.done.clear()
    for _ in range(10):
        one.reconcile()

    stopped = [action.name for action in one.done if isinstance(action, act.StopPod)]
    assert stopped == ["main-hot-1-0"], "the second waits until the first is back"
    one.settle()
    assert all(pod.is_ready for pod in one.pods.values())


def test_no_pod_is_stopped_while_a_shard_has_too_few_in_sync() -> None:
    one = settled(3)
    one.edit_cluster({"image": {"tag": "2"}})
    one.reconcile()
    seen = one.observe()
    assert seen.meta is not None
    unwell = type(seen.meta)("cluster-1", seen.meta.nodes, unwell=("shard 0 of flights has 1 in sync, and needs 2",))
    behind = type(seen.meta)("cluster-1", seen.meta.nodes, behind=frozenset({2}))

    for meta in (unwell, behind):
        made = plan(_with_meta(one, meta))
        assert "StopPod" not in kinds_of(made.actions)
        (rolling,) = [c for c in _cluster_status(made).conditions if c.type == "Rolling"]
        assert rolling.reason == "Waits" and rolling.message


def _with_meta(one: World, meta: Any) -> Any:
    seen = one.observe()
    return type(seen)(**{name: getattr(seen, name) for name in seen.__slots__ if name != "meta"}, meta=meta)


def _cluster_status(made: act.Plan) -> Any:
    return made.statuses["StorageCluster", "main"]


@pytest.mark.fault("storagenode-deleted-pod-node")
def test_a_node_whose_object_is_gone_and_whose_pod_is_down_counts_in_a_roll() -> None:
    """The world fails the test if another pod is stopped meanwhile."""
    one = settled(3)
    one.crash("main-hot-1-0")
    one.annotate_cluster(restart="monday")
    one.delete_storage_node("main-hot-1")
    made = one.reconcile()

    assert "StopPod" not in kinds_of(made)
    assert "StorageNode main-hot-1 is gone" in one.condition("StorageCluster", "main", "Rolling").message
    one.settle()
    assert all(pod.is_ready for pod in one.pods.values())


def test_no_roll_while_a_node_leaves() -> None:
    one = settled(3)
    one.scale(2)
    for _ in range(4):
        one.reconcile()
        one.retirements()
    one.edit_cluster({"image": {"tag": "2"}})
    while one.records[3].step.value != "done":
        one.reconcile()
        one.retirements()

    assert "StopPod" not in kinds_of(one.done)
    one.settle()
    assert "StopPod" in kinds_of(one.done)


# A retirement that waits for the roll ---------------------------------------------------------------------------------
def _waiting(one: World, reason: WaitReason, step: RetireStep = RetireStep.OFFLOAD) -> None:
    """Node 3 leaves, and does not get on."""
    one.scale(2)
    while 3 not in one.records:
        one.reconcile()
    one.records[3] = replace(one.records[3], step=step, wait=Wait(reason, "in words", 0))


@pytest.mark.fault("retirement-waits-object-store")
@pytest.mark.parametrize(
    ("reason", "holds_up"),
    [
        (WaitReason.STORE_UNREACHABLE, False),
        (WaitReason.UNKNOWN_SEGMENTS, False),
        (WaitReason.SHARD_UNAVAILABLE, False),
        (WaitReason.UNDER_REPLICATED, True),
        (WaitReason.RELEASE_IN_PROGRESS, True),
    ],
)
def test_a_roll_continues_where_a_retirement_may_wait_for_it(reason: WaitReason, *, holds_up: bool) -> None:
    """The endpoint of the object store was wrong: only pods with the right one can upload what the node has."""
    one = settled(3, spec={"coldTier": {"bucket": "flights", "endpoint": "http://wrong:9000"}})
    _waiting(one, reason)
    one.edit_cluster({"coldTier": {"bucket": "flights", "endpoint": "http://right:9000"}})
    for _ in range(40):
        one.reconcile()
        one.kubelet()
        one.registrations()
    made = {pod.pod_hash for name, pod in one.pods.items() if name.startswith("main-hot-")}

    assert one.records[3].step is RetireStep.OFFLOAD
    assert made.isdisjoint({one.makes[name] for name in one.nodes}) is holds_up


def test_a_wait_that_should_pass_by_itself_and_stalls_holds_no_roll_up() -> None:
    one = settled(3)
    _waiting(one, WaitReason.UNDER_REPLICATED)
    one.reconcile()
    one.seconds += 1800
    one.reconcile()
    assert one.condition("StorageNode", "main-hot-3", "Stalled").status == "True"
    one.edit_cluster({"image": {"tag": "2"}})
    one.reconcile()
    one.reconcile()

    assert "StopPod" in kinds_of(one.done)


# Pods that read retired volumes ---------------------------------------------------------------------------------------
READER = "main-hot-3-vol-0"


def _with_reader() -> World:
    one = settled(3, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.scale(2)
    one.settle()
    one.done.clear()
    assert one.pods[READER].is_ready
    return one


def test_a_pod_that_reads_a_retired_volume_is_rolled_last() -> None:
    one = _with_reader()
    one.edit_cluster({"image": {"tag": "2"}})
    images = []
    while not one.is_quiet():
        one.turn()
        if one.pods[READER].pod_hash != one.makes["main-hot-3-vol"]:
            images.append(one.cluster.status.image)
    stopped = [action.name for action in one.done if isinstance(action, act.StopPod)]

    assert stopped[-1] == READER and len(stopped) == 9
    assert set(images) == {""} and one.cluster.status.image.endswith(":2"), "not before all pods have it"


@pytest.mark.fault("pod-reads-retired-volume")
def test_an_image_that_cannot_be_pulled_leaves_the_reader_once_it_is_corrected() -> None:
    one = _with_reader()
    one.edit_cluster({"image": {"tag": "bad"}})
    one.reconcile()
    one.bad_makes.add(one.makes["main-hot-3-vol"])
    one.pods[READER] = replace(one.pods[READER], is_leaving=True)  # its machine was drained
    one.kubelet()
    one.kubelet()
    one.reconcile()
    assert one.pods[READER].is_failing
    stalled = one.condition("ReadOnlyMount", "main-hot-3", "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "PodNotBack")
    one.edit_cluster({"image": {"tag": "latest"}})
    one.settle()

    assert one.pods[READER].is_ready
    assert one.condition("ReadOnlyMount", "main-hot-3", "Stalled").status == "False"


def test_a_volume_that_cannot_be_read_holds_up_no_other_pod() -> None:
    one = _with_reader()
    one.edit_cluster({"image": {"tag": "2"}})
    for _ in range(60):
        one.mute_makes.add(one.makes["main-hot-3-vol"])
        one.turn()
    nodes = {name: pod for name, pod in one.pods.items() if name != READER}

    assert all(pod.is_ready and pod.pod_hash == one.makes[name.rpartition("-")[0]] for name, pod in nodes.items())


# A mount that nothing serves ------------------------------------------------------------------------------------------
@pytest.mark.fault("readonlymount-retired-volume-deleted")
def test_a_mount_that_was_deleted_while_the_meta_service_was_silent_is_served_again() -> None:
    one = _with_reader()
    one.is_meta_away = True
    one.delete_mount("main-hot-3")
    one.seconds += 300
    one.reconcile()
    assert "main-hot-3" not in one.mounts, "a deletion waits for so long only"
    one.kubelet()
    one.is_meta_away = False
    one.retirements()
    one.reconcile()
    told = one.condition("StorageCluster", "main", "Healthy")
    assert told.status == "False" and "mount tier/3" in told.message and "no pod reads it" in told.message

    one.settle()
    assert one.pods[READER].is_ready and one.claims["data-main-hot-3"].is_guarded
    assert one.condition("StorageCluster", "main", "Healthy").status == "True"


def test_a_mounted_volume_whose_claim_is_gone_is_reported() -> None:
    one = _with_reader()
    del one.claims["data-main-hot-3"], one.pods[READER], one.mounts["main-hot-3"], one.sets["main-hot-3-vol"]
    one.retirements()
    one.reconcile()

    assert "mount tier/3" in one.condition("StorageCluster", "main", "Healthy").message


@pytest.mark.fault("deletes-claim-node-serves")
def test_a_pod_whose_claim_is_being_deleted_is_not_restarted_and_the_others_are() -> None:
    """Kubernetes takes no pod whose claim is being deleted: it would be away for good, or be stopped without end."""
    one = settled(3)
    one.delete_claim("data-main-hot-2")
    one.settle()
    before = one.uids()
    one.done.clear()
    one.annotate_cluster(restart="monday")
    one.settle()

    assert {name for name, uid in one.uids().items() if uid == before[name]} == {"main-hot-2-0"}
    rolling = one.condition("StorageCluster", "main", "Rolling")
    assert rolling.reason == "Waits" and "main-hot-2-0" in rolling.message


@pytest.mark.fault("kubernetes-refuses-object-taken")
def test_a_node_whose_claim_is_refused_from_the_start_holds_up_no_roll() -> None:
    """A quota, or a size that Kubernetes does not take: the node never had a pod, and no pod restarted any more."""
    one = settled(3)
    one.scale(4)
    one.annotate_cluster(restart="now")
    for _ in range(30):
        one.turn()
        one.claims.pop("data-main-hot-4", None)
        one.hashes.pop(("PersistentVolumeClaim", "data-main-hot-4"), None)

    assert not roll(one.observe()).outdated, "all pods were restarted"
    assert "main-hot-4-0" not in one.pods and one.node_ids() == [1, 2, 3, 4]
