"""What the operator does next, scene by scene, in a small world (support/operator_world)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.retirement import RetireMode, WaitReason
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import NodeSums
from stratalog_operator.plan.scope import SILENT_SECONDS
from stratalog_operator.plan.whole import plan
from stratalog_operator.specs import client_services
from support.operator_world import World, add_pool, kinds_of, settled, world


def _steps_untilsettled(one: World, node: str, passes: int = 100) -> list[str]:
    """The steps of a node's retirement as people see them, each once."""
    seen: list[str] = []
    for _ in range(passes):
        one.retirements()
        one.reconcile()
        one.kubelet()
        one.registrations()
        one.seconds += 5
        told = one.nodes[node].status.retirement if node in one.nodes else None
        if told is not None and told.step not in seen:
            seen.append(told.step)
    return seen


# A cluster ------------------------------------------------------------------------------------------------------------
def test_a_cluster_comes_up_and_a_pass_over_it_writes_nothing() -> None:
    one = world(3)
    one.settle()

    assert one.node_ids() == [1, 2, 3]
    assert one.condition("StorageCluster", "main", "Ready").status == "True"
    assert one.is_quiet()


def test_nothing_is_applied_while_it_is_paused_and_the_status_continues() -> None:
    one = world(3)
    one.annotate_cluster(paused="true")

    assert one.reconcile() == []
    assert one.condition("StorageCluster", "main", "Reconciled").reason == "Paused"


def _outside(**ports: int) -> dict[str, Any]:
    """Listeners for clients outside, by their first ports."""
    listeners = [
        {"name": name, "port": 9094 + at, "type": "nodeport", "firstNodePort": port}
        for at, (name, port) in enumerate(ports.items())
    ]
    return {"listeners": [{"name": "internal", "port": 9092}, *listeners]}


def _node_ports(one: World) -> dict[str, int]:
    """What was applied, by name."""
    bodies: list[Any] = [action.manifest for action in one.done if isinstance(action, act.Apply)]
    services = {body["metadata"]["name"]: body["spec"]["ports"][0] for body in bodies if body["kind"] == "Service"}
    return {name: port["nodePort"] for name, port in services.items() if "nodePort" in port}


def test_ports_of_a_listener_that_was_taken_out_go_and_so_does_a_budget_that_was_turned_off() -> None:
    one = world(3, spec=_outside(far=30_092))
    one.settle()
    one.edit_cluster({"listeners": [{"name": "internal", "port": 9092}], "podDisruptionBudget": {"enabled": False}})
    one.settle()
    gone = {(action.kind, action.name) for action in one.done if isinstance(action, act.DeleteObject)}

    assert gone == {
        ("Service", "main-outside-far"),
        *(("Service", f"main-hot-{number}-far") for number in (1, 2, 3)),
        ("PodDisruptionBudget", "main-node"),
    }
    assert one.is_quiet()


def test_each_node_has_a_port_for_clients_outside_beside_the_one_that_all_have() -> None:
    one = world(3, spec=_outside(far=30_092))
    one.settle()
    told = one.condition("StorageCluster", "main", "Reconciled")

    assert (told.status, told.reason) == ("True", "Applied")
    assert _node_ports(one) == {
        "main-outside-far": 30_092,
        "main-hot-1-far": 30_094,
        "main-hot-2-far": 30_095,
        "main-hot-3-far": 30_096,
    }


def test_a_pass_over_many_nodes_compares_their_ports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of_node, asked = client_services.port_of_node, Counter[int]()

    def counted(listener: Any, node_id: int) -> int:
        asked[node_id] += 1
        return of_node(listener, node_id)

    one = world(10, spec=_outside(far=30_092))
    one.settle()
    one.edit_cluster(_outside(far=30_192))
    monkeypatch.setattr(client_services, "port_of_node", counted)
    plan(one.observe())
    assert set(asked) == {*range(1, 11)}
    assert max(asked.values()) <= 4, "by the comparison, and for each node's own Service"


def test_the_status_says_where_clients_begin_inside_and_outside() -> None:
    one = world(3, spec=_outside(far=30_092, near=30_192))
    one.reconcile()
    before = one.cluster.status.listeners
    one.settle()

    assert [listener.name for listener in before] == ["internal"], "no machine has an address yet"
    assert {listener.name: listener.bootstrap for listener in one.cluster.status.listeners} == {
        "internal": before[0].bootstrap,
        "far": "10.0.0.1:30092",
        "near": "10.0.0.1:30192",
    }


def test_hosts_that_clients_outside_are_reported_stand_in_the_status() -> None:
    listeners = [
        {"name": "far", "port": 9094, "type": "nodeport", "firstNodePort": 30_092, "advertisedHost": "log.example.org"},
        {"name": "six", "port": 9095, "type": "nodeport", "firstNodePort": 30_192, "advertisedHost": "2001:db8::1"},
    ]
    one = world(3, spec={**_outside(), "listeners": [*_outside()["listeners"], *listeners]})
    one.settle()

    assert [listener.bootstrap for listener in one.cluster.status.listeners][1:] == [
        "log.example.org:30092",
        "[2001:db8::1]:30192",
    ]


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ({"far": 30_092, "near": 30_094}, "as has node 1 by listener far"),
        ({"far": 30_092, "near": 30_090}, "as has listener far"),
        ({"far": 32_765}, "32767 is the last one"),
    ],
)
def test_ports_that_do_not_fit_are_refused_in_words_and_the_rest_continues(ports: dict[str, int], words: str) -> None:
    one = world(3, spec=_outside(**ports))
    one.settle()
    told = one.condition("StorageCluster", "main", "Reconciled")

    assert (told.status, told.reason) == ("False", "InvalidSpec")
    assert words in told.message
    assert one.node_ids() == [1, 2, 3]
    assert not [name for name in _node_ports(one) if name.startswith("main-hot-")]


def test_while_the_meta_service_does_not_answer_nobody_is_stopped_and_nobody_knows() -> None:
    one = settled(5)
    one.is_meta_away = True
    one.scale(3)
    one.edit_cluster({"image": {"tag": "2"}})
    for _ in range(20):
        one.reconcile()
        one.kubelet()

    assert not [action for action in one.done if not isinstance(action, act.Apply)]
    assert one.condition("StorageCluster", "main", "Ready").status == "Unknown"
    assert len(one.pods) == 11


@pytest.mark.fault("meta-service-answers-node")
def test_a_meta_service_that_is_silent_for_a_moment_raises_no_alarm_and_one_that_stays_so_blocks() -> None:
    one = settled(3)
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.scale(2)
    one.settle()
    one.is_meta_away = True
    one.reconcile()
    one.seconds += SILENT_SECONDS - 1
    one.reconcile()

    told = one.condition("StorageNode", "main-hot-3", "RetireBlocked")
    assert (told.status, told.reason) == ("True", "ReplicationFactor"), "what was told last counts"
    assert one.condition("StorageNode", "main-hot-3", "Registered").reason == "MetaUnreachable"
    one.seconds += 1
    one.reconcile()
    assert one.condition("StorageNode", "main-hot-3", "RetireBlocked").reason == "MetaUnreachable"
    one.is_meta_away = False
    one.reconcile()
    assert one.condition("StorageNode", "main-hot-3", "RetireBlocked").reason == "ReplicationFactor"


# Scaling out ----------------------------------------------------------------------------------------------------------
def test_scale_out_makes_what_is_missing_and_touches_nothing_that_runs() -> None:
    one = settled(3)
    before = one.uids()
    one.scale(5)
    one.settle()

    assert one.node_ids() == [1, 2, 3, 4, 5]
    assert before.items() <= one.uids().items()
    assert set(kinds_of(one.done)) == {"Apply", "GuardClaim", "NoteDisk"}


def test_zones_are_shared_out_evenly_and_written_down() -> None:
    one = settled(5, pool={"zones": ["a", "b", "c"]})

    assert [one.nodes[f"main-hot-{number}"].spec.zone for number in range(1, 6)] == ["a", "b", "c", "a", "b"]


def test_two_pools_never_give_the_same_id() -> None:
    one = world(2)
    add_pool(one, "cold", 2)
    one.settle()

    assert one.node_ids() == [1, 2, 3, 4]


def test_an_id_is_never_given_twice() -> None:
    one = settled(3)
    for _ in range(2):
        one.scale(2)
        one.settle()
        one.scale(3)
        one.settle()

    assert one.node_ids() == [1, 2, 5]


# Scaling in -----------------------------------------------------------------------------------------------------------
def test_scale_in_follows_the_meta_service_and_then_takes_pod_and_volume() -> None:
    one = settled(3)
    one.scale(2)
    steps = _steps_untilsettled(one, "main-hot-3")

    # The service is past its preflight when it is looked at next.
    assert steps == [
        "Wished", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release", "Mount",
        "PodStop", "Volume", "Done",
    ]  # fmt: skip
    assert one.node_ids() == [1, 2]
    assert sorted(one.claims) == ["data-main-hot-1", "data-main-hot-2"]
    assert [(gone.node_id, gone.claim) for gone in one.cluster.status.retired_nodes] == [(3, "")]
    assert one.is_quiet()


def test_a_node_that_is_to_go_without_its_volume_raises_no_alarm() -> None:
    one = settled(3)
    one.scale(2)
    alarms = set()
    while 3 in one.node_ids():
        one.turn()
        if 3 in one.node_ids():
            stalled = one.condition("StorageNode", "main-hot-3", "Stalled")
            alarms.add((stalled.status, stalled.message))
    assert alarms == {("False", "")}


def test_all_that_leave_are_wished_for_before_the_first_has_left() -> None:
    one = settled(5)
    one.scale(3)
    one.settle()
    wishes = [number for number, action in enumerate(one.done) if isinstance(action, act.AskRetire)]
    stops = [number for number, action in enumerate(one.done) if isinstance(action, act.StopSet)]

    assert len(wishes) == len(stops) == 2
    assert max(wishes) < min(stops)


def test_a_kept_claim_is_labelled_and_named_and_loses_its_guard() -> None:
    one = settled(3, spec={"storageRetention": {"whenScaled": "Retain"}})
    one.scale(2)
    one.settle()
    claim = one.claims["data-main-hot-3"]

    assert claim.is_released and not claim.is_guarded and not claim.is_leaving
    assert one.cluster.status.retired_nodes[0].claim == "data-main-hot-3"
    assert all(one_.keeps_volume for one_ in one.done if isinstance(one_, act.UnguardClaim))
    one.scale(3)
    one.settle()
    assert one.node_ids() == [1, 2, 4]


def test_who_goes_first_is_named_or_dead_or_has_the_highest_id() -> None:
    named = settled(4, pool={"removeNodeIds": [2]})
    named.scale(3)
    named.settle()
    dead = settled(4)
    dead.crash("main-hot-1-0")
    dead.registrations()
    dead.scale(3)
    dead.settle()
    highest = settled(4)
    highest.scale(3)
    highest.settle()

    assert [one.node_ids() for one in (named, dead, highest)] == [[1, 3, 4], [2, 3, 4], [1, 2, 3]]


def test_a_node_that_never_joined_goes_first_and_needs_no_retirement() -> None:
    one = settled(3)
    one.scale(4)
    one.reconcile()
    one.reconcile()
    one.scale(3)
    one.settle()

    assert one.node_ids() == [1, 2, 3]
    assert "AskRetire" not in kinds_of(one.done)
    assert "data-main-hot-4" not in one.claims


def test_a_node_that_the_meta_service_forgot_keeps_its_volume() -> None:
    """Not known is not empty: it had registered."""
    one = settled(3)
    del one.members[3]
    one.scale(2)
    for _ in range(20):
        one.reconcile()
        one.kubelet()
        one.seconds += 5

    assert one.condition("StorageNode", "main-hot-3", "RetireBlocked").reason == "UnknownNode"
    assert one.claims["data-main-hot-3"].is_guarded
    assert "main-hot-3-0" in one.pods


def test_another_disk_under_the_id_is_nobody_of_ours() -> None:
    one = settled(3)
    one.scale(2)
    for _ in range(3):
        one.reconcile()
    record = one.records[3]
    one.records[3] = type(record)("another-disk", RetireMode.OFFLOAD, record.step, 0, 0)
    for _ in range(20):
        one.reconcile()
        one.kubelet()
        one.retirements()

    assert one.condition("StorageNode", "main-hot-3", "RetireBlocked").reason == "IdentityChanged"
    assert not {"StopSet", "DeleteClaim", "UnguardClaim"} & set(kinds_of(one.done))


def test_scaling_back_before_release_keeps_the_node_and_its_pod() -> None:
    one = settled(3)
    before = one.uids()
    one.scale(2)
    for _ in range(3):
        one.reconcile()
        one.retirements()
    assert one.records
    one.scale(3)
    one.settle()

    assert one.node_ids() == [1, 2, 3]
    assert one.uids() == before
    assert not one.records
    assert "CancelRetire" in kinds_of(one.done)


def test_scaling_back_after_release_makes_a_new_node() -> None:
    one = settled(3)
    one.scale(2)
    while not one._is_released(3):
        one.reconcile()
        one.retirements()
    one.scale(3)
    one.settle()

    assert one.node_ids() == [1, 2, 4]


def test_a_blocked_retirement_says_why_and_freezes_nothing_else() -> None:
    one = settled(3)
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.scale(2)
    one.settle()
    blocked = one.condition("StorageNode", "main-hot-3", "RetireBlocked")
    one.edit_cluster({"config": {"log.level": "debug"}})
    add_pool(one, "cold", 1)
    one.settle()

    assert (blocked.status, blocked.reason) == ("True", "ReplicationFactor")
    assert "add nodes first" in blocked.message
    assert "main-cold-4" in one.nodes
    assert len({pod.pod_hash for pod in one.pods.values()}) == 6, "meta, etcd and four nodes, all of the new make"
    assert not [pod for pod in one.pods.values() if not pod.is_ready]
    one.blocked = None
    one.settle()
    assert one.node_ids() == [1, 2, 4]


def test_a_retirement_that_gets_nowhere_is_stalled_after_a_while_and_says_since_when() -> None:
    one = settled(3)
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.scale(2)
    one.settle()
    assert one.condition("StorageNode", "main-hot-3", "Stalled").status == "False"
    one.seconds += 1800
    one.reconcile()

    told = one.condition("StorageNode", "main-hot-3", "Stalled")
    assert told.status == "True" and "Preflight" in told.message
    assert one.condition("StorageNodePool", "hot", "Stalled").status == "True"


def test_what_a_blocked_node_sheds_as_ever_is_no_progress_of_its_retirement() -> None:
    one = settled(3)
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.scale(2)
    one.settle()
    for left in (9, 8, 7, 9, 8):  # uploads and retention continue, and so do writes
        one.left_segments = left
        one.seconds += 600
        one.reconcile()

    assert one.condition("StorageNode", "main-hot-3", "Stalled").status == "True"


def test_a_node_that_a_person_retires_is_replaced_first() -> None:
    one = settled(3)
    one.wish_to_retire("main-hot-1")
    one.settle()
    wish = next(number for number, action in enumerate(one.done) if isinstance(action, act.AskRetire))
    joined = [action for action in one.done[:wish] if isinstance(action, act.NoteDisk)]

    assert one.node_ids() == [2, 3, 4]
    assert [action.name for action in joined] == ["data-main-hot-4"]


def test_the_volume_stays_where_it_is_and_is_read_by_a_light_pod() -> None:
    one = settled(3, spec={"scaleIn": {"mode": "RemountVolume"}})
    one.scale(2)
    steps = _steps_untilsettled(one, "main-hot-3")

    assert steps.index("PodStop") < steps.index("Remount") < steps.index("Mount")
    assert one.node_ids() == [1, 2]
    assert one.pods["main-hot-3-vol-0"].is_ready
    assert "main-hot-3-0" not in one.pods
    assert one.claims["data-main-hot-3"].is_guarded, "it has what is nowhere else"
    one.mounts["main-hot-3"] = _deleting(one.mounts["main-hot-3"])
    one.settle()
    assert "main-hot-3" not in one.mounts
    assert "data-main-hot-3" not in one.claims


def _deleting(seen: Any) -> Any:
    return type(seen)(
        seen.name, seen.uid, seen.spec, seen.status, seen.generation, seen.annotations, seen.finalizers, True
    )


# Deletion -------------------------------------------------------------------------------------------------------------
def _delete_cluster(one: World) -> None:
    one.cluster = _deleting(one.cluster)


def test_a_deleted_cluster_asks_no_service_and_keeps_its_volumes() -> None:
    one = settled(3)
    one.is_meta_away = True
    _delete_cluster(one)
    for _ in range(5):
        one.reconcile()

    assert not one.cluster.finalizers and not one.pools["hot"].finalizers
    assert len(one.claims) == 3 and not [claim for claim in one.claims.values() if claim.is_guarded or claim.is_leaving]
    assert all(action.keeps_volume for action in one.done if isinstance(action, act.UnguardClaim))


def test_volumes_go_with_the_cluster_only_on_a_second_word() -> None:
    one = settled(3, spec={"storageRetention": {"whenDeleted": "Delete"}})
    _delete_cluster(one)
    for _ in range(5):
        one.reconcile()
    assert one.cluster.finalizers and not [claim for claim in one.claims.values() if claim.is_leaving]
    assert "allow-deletion" in one.condition("StorageCluster", "main", "Reconciled").message
    one.annotate_cluster(allow_deletion="true")
    one.reconcile()
    told = one.condition("StorageCluster", "main", "Reconciled").message
    assert "allow-deletion=uid-of-main (true does not name this cluster)" in told
    assert one.cluster.finalizers and not [claim for claim in one.claims.values() if claim.is_leaving]
    one.annotate_cluster(allow_deletion="uid-of-main")
    one.needed.clear()
    for _ in range(10):
        one.reconcile()
        alarms = [one.condition("StorageNode", name, "Stalled").message for name in one.nodes]
        assert not any(alarms), "it is by the person who deleted the cluster that its claims go"

    assert all(claim.is_leaving and not claim.is_guarded for claim in one.claims.values())
    assert not one.cluster.finalizers


def test_a_namespace_that_goes_loses_our_finalizers_and_its_volumes_are_kept() -> None:
    one = settled(3, spec={"storageRetention": {"whenDeleted": "Delete"}})
    one.is_namespace_leaving = True
    for _ in range(3):
        one.reconcile()

    assert not one.cluster.finalizers and not one.pools["hot"].finalizers
    assert not [claim for claim in one.claims.values() if claim.is_guarded]
    assert all(action.keeps_volume for action in one.done if isinstance(action, act.UnguardClaim))


@pytest.mark.fault("cluster-whendeleted-delete-released")
def test_the_annotation_lets_go_of_a_cluster_that_would_wait() -> None:
    one = settled(3, spec={"storageRetention": {"whenDeleted": "Delete"}})
    _delete_cluster(one)
    one.annotate_cluster(release_finalizer="true", allow_deletion="false")
    one.reconcile()

    assert not one.cluster.finalizers
    guards = [action for action in one.done if isinstance(action, act.UnguardClaim)]
    assert guards and all(action.keeps_volume for action in guards), "no one said that the volumes may go"
    assert "DeleteClaim" not in kinds_of(one.done)


def test_a_cluster_of_the_same_name_takes_its_volumes_again() -> None:
    one = settled(3)
    _delete_cluster(one)
    for _ in range(5):
        one.reconcile()
    again = world(3)
    again.claims = dict(one.claims)
    again.members, again.needed = dict(one.members), set(one.needed)
    again.settle()

    assert again.node_ids() == [1, 2, 3]
    assert {name: claim.uid for name, claim in again.claims.items()} == {
        name: claim.uid for name, claim in one.claims.items()
    }


def _remade(one: World) -> World:
    """Another object under the name; what was on claims is still there."""
    again = world(3)
    again.claims = dict(one.claims)
    return again


def test_disks_of_other_metadata_are_left_alone_and_their_ids_are_not_given() -> None:
    one = settled(3)
    again = _remade(one)
    again.cluster_id = "cluster-2"
    again.settle()

    assert again.node_ids() == [4, 5, 6]
    assert {name: again.claims[name] for name in one.claims} == one.claims
    told = again.condition("StorageNodePool", "hot", "Ready")
    assert told.status == "True"
    assert "data-main-hot-1, data-main-hot-2, data-main-hot-3" in told.message and "another cluster" in told.message


def test_whose_disks_are_there_is_asked_before_the_first_node_is_made() -> None:
    again = _remade(settled(3))
    again.is_meta_away = True
    for _ in range(5):
        again.turn()
    assert not again.nodes
    assert "data-main-hot-1" in again.condition("StorageNodePool", "hot", "Ready").message

    again.is_meta_away = False
    again.settle()
    assert again.node_ids() == [1, 2, 3]


def test_a_pool_that_is_deleted_waits_until_its_nodes_have_left() -> None:
    one = settled(3)
    add_pool(one, "cold", 1)
    one.settle()
    one.pools["cold"] = _deleting(one.pools["cold"])
    one.reconcile()
    assert "cold" in one.pools
    one.settle()

    assert "cold" not in one.pools
    assert one.node_ids() == [1, 2, 3]


def test_a_storage_node_deleted_by_hand_comes_back_with_the_same_pod_and_volume() -> None:
    one = settled(3)
    pods, claims = one.uids(), dict(one.claims)
    one.delete_storage_node("main-hot-2")
    one.settle()

    assert one.node_ids() == [1, 2, 3]
    assert one.uids() == pods and one.claims == claims
    assert "AskRetire" not in kinds_of(one.done)


def test_a_node_whose_object_was_deleted_while_scaling_in_is_not_left_running_for_nobody() -> None:
    one = settled(3)
    one.scale(2)
    one.delete_storage_node("main-hot-1")
    one.settle()

    assert one.node_ids() == [1, 2]
    assert sorted(one.claims) == ["data-main-hot-1", "data-main-hot-2"]


def test_a_claim_that_a_user_deletes_is_held_and_says_why_until_a_person_lets_it_go() -> None:
    one = settled(3)
    one.delete_claim("data-main-hot-2")
    one.settle()
    told = one.condition("StorageNode", "main-hot-2", "StorageBound")

    assert one.claims["data-main-hot-2"].is_guarded
    assert told.status == "False" and "release-finalizer" in told.message
    claim = one.claims["data-main-hot-2"]
    one._change_claim(claim.name, claim.uid, release_word=claim.storage_id)
    one.reconcile()
    assert not one.claims["data-main-hot-2"].is_guarded


@pytest.mark.fault("volume-claim-storage-node")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_node_whose_claim_is_gone_gets_no_empty_one_and_another_does_not_pass_for_it(is_replaced: bool) -> None:
    one = settled(3)
    lost = one.claims.pop("data-main-hot-2")
    one.hashes.pop(("PersistentVolumeClaim", lost.name))
    one.crash("main-hot-2-0")
    if is_replaced:
        empty = replace(lost, uid="another", is_guarded=False, storage_id="", cluster_id="")
        one.claims[lost.name] = empty
    for _ in range(5):
        one.reconcile()
    told = one.nodes["main-hot-2"].status.identity

    assert {action.name for action in one.done if isinstance(action, act.NoteDisk | act.GuardClaim)} == set()
    assert not [action for action in one.done if isinstance(action, act.Apply) and action.key[1] == lost.name]
    assert one.condition("StorageNode", "main-hot-2", "StorageBound").reason == "VolumeLost"
    assert "retire the node" in one.condition("StorageNode", "main-hot-2", "Stalled").message
    assert told.storage_id == lost.storage_id and told.claim_uid == lost.uid


def test_a_claim_that_was_restored_from_a_backup_is_the_nodes_by_its_note() -> None:
    one = settled(3)
    lost = one.claims["data-main-hot-2"]
    one.claims[lost.name] = replace(lost, uid="restored")
    one.settle()

    assert one.condition("StorageNode", "main-hot-2", "StorageBound").status == "True"
    assert one.nodes["main-hot-2"].status.identity.claim_uid == "restored"


@pytest.mark.fault("instance-meta-service-begun")
def test_what_nodes_have_not_told_to_a_new_leader_of_the_service_stays_as_it_was_told() -> None:
    one = world(3, spec={"coldTier": {"bucket": "flights"}})
    one.settle()

    def look(used: int | None, away: int | None) -> Any:
        seen = one.observe()
        assert seen.meta is not None
        sums = {number: NodeSums(4, 2, used) for number in (1, 2, 3)}
        made = plan(replace(seen, meta=replace(seen.meta, node_sums=sums, store_away_seconds=away)))
        for (kind, name), status in made.statuses.items():
            one._write_status(kind, name, status)
        return made.statuses

    look(90, 40)
    told = one.condition("StorageCluster", "main", "ColdTierAvailable")
    assert (told.status, told.reason, told.message) == ("False", "DoesNotAnswer", "no answer for 40 s")
    assert one.nodes["main-hot-1"].status.data.disk_used_percent == 90
    assert look(None, None) == {}
    look(91, 0)
    assert one.condition("StorageCluster", "main", "ColdTierAvailable").status == "True"
    assert one.nodes["main-hot-1"].status.data.disk_used_percent == 91


@pytest.mark.fault("cluster-kubernetes-volumes-deleted")
def test_a_deleted_cluster_gives_up_all_its_volumes_in_as_few_passes_as_it_has_steps() -> None:
    """One claim a pass took an hour for 500 nodes, and `stratalog operator release` ended before it was done."""
    one = world(12)
    one.settle()
    one.edit_cluster({"storageRetention": {"whenDeleted": "Delete"}})
    one.annotate_cluster(allow_deletion=one.cluster.uid)
    one.needed.clear()
    one.cluster = replace(one.cluster, is_deleting=True)
    for _ in range(3):
        one.turn()

    assert one.is_gone and not one.claims
