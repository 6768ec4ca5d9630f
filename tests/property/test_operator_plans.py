"""The operator among people, faults and its own deaths: whatever happens, it ends where the spec says.

The world of `support/operator_world` fails a run at once when the last copy of something is deleted, when a serving pod
is stopped while another does not serve, when a pass does two disruptive things, or when an object of a user is written.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from stratalog.model.retirement import WaitReason
from support.operator_world import World, world


class Operators(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world: World = world(3, pool={"zones": ["a", "b"]})
        self.given: set[tuple[int, str]] = set()

    @rule(replicas=st.integers(1, 5))
    def a_person_scales(self, replicas: int) -> None:
        self.world.scale(replicas)

    @rule(word=st.sampled_from(["monday", "tuesday"]))
    def a_person_restarts(self, word: str) -> None:
        self.world.annotate_cluster(restart=word)

    @rule(mode=st.sampled_from(["Offload", "RemountVolume"]))
    def a_person_chooses_another_mode(self, mode: str) -> None:
        self.world.edit_cluster({"scaleIn": {"mode": mode}})

    @rule(policy=st.sampled_from(["Delete", "Retain"]))
    def a_person_chooses_another_policy(self, policy: str) -> None:
        self.world.edit_cluster({"storageRetention": {"whenScaled": policy}})

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data())
    def a_person_deletes_a_storage_node(self, data: st.DataObject) -> None:
        self.world.delete_storage_node(data.draw(st.sampled_from(sorted(self.world.nodes))))

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data())
    def a_person_deletes_a_storage_node_and_its_claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        if self.world.claims.get(f"data-{name}") is not None and self.world.claims[f"data-{name}"].is_guarded:
            self.world.delete_claim(f"data-{name}")
            self.world.delete_storage_node(name)

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data())
    def a_person_retires_a_node(self, data: st.DataObject) -> None:
        self.world.wish_to_retire(data.draw(st.sampled_from(sorted(self.world.nodes))))

    @precondition(lambda self: self.world.members)
    @rule(data=st.data(), is_right_disk=st.booleans())
    def a_person_mounts_a_volume(self, data: st.DataObject, *, is_right_disk: bool) -> None:
        """Of a node that lives, leaves or has left."""
        member = self.world.members[data.draw(st.sampled_from(sorted(self.world.members)))]
        storage_id = member.storage_id if is_right_disk else "another"
        self.world.mount_volume(f"mine-{len(self.world.mounts)}-{member.node_id}", member.node_id, storage_id)

    @precondition(lambda self: self.world.mounts)
    @rule(data=st.data())
    def a_person_deletes_a_mount(self, data: st.DataObject) -> None:
        self.world.delete_mount(data.draw(st.sampled_from(sorted(self.world.mounts))))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_pod_dies(self, data: st.DataObject) -> None:
        self.world.crash(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule(blocked=st.sampled_from([None, WaitReason.REPLICATION_FACTOR]))
    def retirements_are_blocked_or_not(self, blocked: WaitReason | None) -> None:
        self.world.blocked = blocked

    @rule()
    def kubernetes_moves(self) -> None:
        self.world.kubelet()
        self.world.registrations()

    @rule()
    def the_meta_service_moves(self) -> None:
        self.world.retirements()

    @rule(times=st.integers(1, 5))
    def passes_are_made(self, times: int) -> None:
        for _ in range(times):
            self.world.reconcile()
            self._check_disks()

    @rule(killed_after=st.integers(0, 6))
    def a_pass_is_killed(self, killed_after: int) -> None:
        self.world.reconcile(killed_after=killed_after)
        self._check_disks()

    @rule(killed_after=st.none() | st.integers(0, 6))
    def a_pass_without_the_meta_service(self, killed_after: int | None) -> None:
        self.world.reconcile(killed_after=killed_after, is_meta_away=True)
        self._check_disks()

    @rule()
    def all_goes_on_for_a_while(self) -> None:
        for _ in range(8):
            self.world.retirements()
            self.world.reconcile()
            self.world.kubelet()
            self.world.registrations()
            self.world.seconds += 5
            self._check_disks()

    def _check_disks(self) -> None:
        """An id has one disk forever."""
        self.given |= {(member.node_id, member.storage_id) for member in self.world.members.values()}
        ids = [node_id for node_id, _ in self.given]
        assert len(ids) == len(set(ids)), f"an id was given twice: {sorted(self.given)}"

    def teardown(self) -> None:
        """When nothing happens any more it ends where the spec says, and is quiet."""
        one = self.world
        one.blocked = None
        one.settle()
        staying = [node for node in one.nodes.values() if not node.spec.retire]
        alive = [member.node_id for member in one.members.values() if member.is_alive]

        assert len(one.nodes) == len(staying) == one.pools["hot"].spec.replicas
        assert sorted(alive) == one.node_ids()
        assert all(pod.is_ready for pod in one.pods.values())
        assert len({pod.pod_hash for pod in one.pods.values() if pod.name.startswith("main-meta")}) == 1
        rolling = one.condition("StorageCluster", "main", "Rolling")
        held = [claim.name.removeprefix("data-") for claim in one.claims.values() if claim.is_leaving]
        # A pod whose claim a person deleted would not come back.
        assert rolling.status == "False" or any(f"pod {name}-0 would not come back" in rolling.message for name in held)
        assert one.is_quiet()
        kept = {f"disk-of-{claim.uid}" for claim in one.claims.values()}
        assert one.needed <= kept


Operators.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestWhateverHappensTheOperatorEndsWhereTheSpecSays = Operators.TestCase
