"""A small Kubernetes and a small meta service for the operator's plan, which carry out its actions, or half of them.

The world checks what the plan must not do, and fails the test: it never deletes a disk with the only copy of data,
stops a serving pod only while all others serve, does at most one disruptive thing in a pass (except for a cluster that
is being deleted), and never writes the users' fields.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, get_args
from uuid import UUID

from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Wait, WaitReason
from stratalog.model.topic import Topic
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog_operator.apply.perform import IN_TURNS, RANK, apart
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.decisions import is_given_up
from stratalog_operator.plan.deletion import is_going
from stratalog_operator.plan.etcd import needs_etcd_state
from stratalog_operator.plan.observed import (
    Observed,
    Seen,
    SeenClaim,
    SeenMeta,
    SeenMount,
    SeenNode,
    SeenPod,
    SeenRebalance,
    SeenRoles,
    SeenSet,
    SeenTopic,
    SeenUser,
)
from stratalog_operator.plan.requests import needs_rebalance_state
from stratalog_operator.plan.scope import ANNOTATION_CHOSEN
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.conditions import Condition
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import (
    ANNOTATION_POD_HASH,
    ANNOTATION_WANTED_HASH,
    LABEL_NODE_ID,
    LABEL_PART,
    LABEL_POOL,
    LABEL_ZONE,
)
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.specs.objects import Manifest
from support.operator_etcd import SmallEtcd
from support.operator_users import SmallUsers

_STEPS: Final = list(RetireStep)
_USERS: Final = {"StorageCluster", "StorageNodePool", "TopicStorage", "StorageUser"}
_DISRUPTIVE: Final = get_args(act.Disruptive)


@dataclass
class World:
    """Mutable; one cluster called `main` with pools of its own."""

    cluster: Any = None
    pools: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, SeenNode] = field(default_factory=dict)
    mounts: dict[str, SeenMount] = field(default_factory=dict)
    hashes: dict[tuple[str, str], str] = field(default_factory=dict)
    wanted_once: set[tuple[str, str]] = field(default_factory=set)
    sets: dict[str, SeenSet] = field(default_factory=dict)
    makes: dict[str, str] = field(default_factory=dict)
    """Of each set: the hash of the pods that it makes."""
    pods: dict[str, SeenPod] = field(default_factory=dict)
    claims: dict[str, SeenClaim] = field(default_factory=dict)
    members: dict[int, Node] = field(default_factory=dict)
    records: dict[int, Retirement] = field(default_factory=dict)
    meta_mounts: dict[int, Mount] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    """Disks that have something that is nowhere else."""
    blocked: WaitReason | None = None
    """Retirements do not leave their preflight."""
    left_segments: int = 2
    """What a node that leaves still has alone, until its release."""
    cluster_id: str = "cluster-1"
    """Of the metadata."""
    bad_makes: set[str] = field(default_factory=set)
    mute_makes: set[str] = field(default_factory=set)
    """Nodes whose pods run, and have not served for an hour at any check."""
    """Pods of these hashes crash."""
    users_wishes: set[str] = field(default_factory=set)
    """StorageNodes that a person wants to leave."""
    topics: dict[str, SeenTopic] = field(default_factory=dict)
    meta_topics: dict[str, Topic] = field(default_factory=dict)
    users: dict[str, SeenUser] = field(default_factory=dict)
    kept: SmallUsers = field(default_factory=SmallUsers)
    """Of users, by the meta service and in Secrets."""
    user_mounts: dict[str, Mount] = field(default_factory=dict)
    asked_rolls: dict[str, int] = field(default_factory=dict)
    rebalance: SeenRebalance = field(default_factory=lambda: SeenRebalance((), is_even=True, pending_shards=0))
    has_token: bool = False
    roles: SeenRoles | None = None
    """The Secret with hashes of tokens, of a cluster whose parts have certificates."""
    is_meta_away: bool = False
    is_namespace_leaving: bool = False
    seconds: int = 0
    done: list[act.Action] = field(default_factory=list)
    """All that was ever done, in its order."""
    writes: int = 0
    """Of all passes."""
    dies_after: int | None = None
    """The total of writes at which the pass ends, as by a kill; the operator's next life makes the next one."""
    etcd: SmallEtcd = field(default_factory=SmallEtcd)
    _numbers: int = 0

    def copied(self) -> World:
        """What happens to it happens to it alone."""
        kept = {one.name: copy.copy(getattr(self, one.name)) for one in fields(self)}
        return World(**kept)

    # What is observed -------------------------------------------------------------------------------------------------
    @property
    def now(self) -> str:
        return f"2013-01-01T{self.seconds // 3600 % 24:02}:{self.seconds // 60 % 60:02}:{self.seconds % 60:02}Z"

    def observe(self, *, is_meta_away: bool = False) -> Observed:
        meta = None
        if not (self.is_meta_away or is_meta_away) and self._meta_serves():
            meta = SeenMeta(
                self.cluster_id,
                tuple(self.members.values()),
                self._statuses(),
                (*self.meta_mounts.values(), *self.user_mounts.values()),
                topics=tuple(self.meta_topics.values()),
                asked_rolls=dict(self.asked_rolls),
                rights=self.kept.rights(),
            )
        seen = Observed(
            "data", self.now, self.cluster, tuple(self.pools.values()), tuple(self.nodes.values()),
            tuple(self.mounts.values()), dict(self.hashes), tuple(self.sets.values()), tuple(self.pods.values()),
            tuple(self.claims.values()), meta, self.has_token, self.is_namespace_leaving,
            topics=tuple(self.topics.values()), uids={key: f"uid-of-{key[1]}" for key in self.hashes},
            etcd_claims=tuple(self.etcd.claims.values()), users=tuple(self.users.values()),
            user_secrets={one.name: self.kept.seen(one) for one in self.users.values()}, roles=self.roles,
        )  # fmt: skip
        if needs_rebalance_state(seen):
            seen = replace(seen, rebalance=self.rebalance)
        return replace(seen, etcd=self.etcd.observe()) if needs_etcd_state(seen) else seen

    def _meta_serves(self) -> bool:
        return any(pod.is_ready for name, pod in self.pods.items() if name.startswith("main-meta-"))

    def _statuses(self) -> tuple[RetirementStatus, ...]:
        found = []
        for node_id, record in self.records.items():
            member = self.members[node_id]
            left = 0 if record.step.is_released else self.left_segments
            words = words_of(record, left, left * 1024, 0, -1)
            found.append(RetirementStatus(node_id, member.is_alive, record, left, left * 1024, 0, -1, words))
        return tuple(found)

    # A pass -----------------------------------------------------------------------------------------------------------
    def reconcile(self, *, killed_after: int | None = None, is_meta_away: bool = False) -> list[act.Action]:
        """One pass, killed after a number of writes. Each action and each status is one write."""
        return list(self._pass(killed_after, is_meta_away=is_meta_away).actions)

    def _pass(self, killed_after: int | None = None, *, is_meta_away: bool = False) -> act.Plan:
        if self.is_gone:
            return act.Plan((), {}, 60)
        made = plan(self.observe(is_meta_away=is_meta_away))
        disruptive = [action for action in made.actions if isinstance(action, _DISRUPTIVE)]
        assert len(disruptive) <= 1 or is_going(self.observe()), f"at most one disruptive action a pass: {disruptive}"
        for write in list(self._writes(made))[:killed_after]:
            if self.dies_after == self.writes:
                self.dies_after = None
                break
            self.writes += 1
            write()
        return made

    def _writes(self, made: act.Plan) -> Iterator[Callable[[], None]]:
        """In the order of `apply/perform.py`."""
        whole, in_turns = (made.actions, {}) if is_going(self.observe()) else apart(made.actions)
        yield from (partial(self._do, action) for action in whole)
        told = sorted(made.statuses.items(), key=lambda one: RANK.index(one[0][0]))
        yield from (partial(self._write_status, *key, status) for key, status in told if key[0] not in IN_TURNS)
        yield from (partial(self._do, action) for actions in in_turns.values() for action in actions)
        yield from (partial(self._write_status, *key, status) for key, status in told if key[0] in IN_TURNS)

    def settle(self, passes: int = 400) -> None:
        """Passes and the world's own moves in turn, until nothing is left to do."""
        for _ in range(passes):
            made, before = self.turn()
            if not made.actions and not made.statuses and self._shape() == before:
                return
        raise AssertionError(f"not settled: {self.reconcile()}")

    def turn(self) -> tuple[act.Plan, object]:
        """A pass, then the world's own moves. Returns the plan, and how the world was in between."""
        made = self._pass()
        before = self._shape()
        self.kubelet()
        self.registrations()
        self.retirements()
        self.seconds += 5
        return made, before

    def is_quiet(self) -> bool:
        """A pass would write nothing."""
        made = plan(self.observe())
        return self.is_gone or (not made.actions and not made.statuses)

    @property
    def is_gone(self) -> bool:
        """The StorageCluster: nothing held it any more."""
        return self.cluster.is_deleting and not self.cluster.finalizers

    def _shape(self) -> object:
        return (
            dict(self.pods),
            dict(self.sets),
            dict(self.claims),
            dict(self.members),
            dict(self.records),
            dict(self.nodes),
            (dict(self.etcd.claims), dict(self.etcd.listed)),
        )

    # What Kubernetes does by itself -----------------------------------------------------------------------------------
    def kubelet(self) -> None:
        """Claims are bound; pods that are to go are gone; those that are to be are made, and ready the next time. What
        belonged to a cluster that is gone goes as well."""
        if self.is_gone:
            self.sets.clear()
            self.nodes.clear()
        for name, claim in self.claims.items():
            if not claim.is_bound and not claim.is_leaving:
                self.claims[name] = replace(claim, is_bound=True)
        wanted = {f"{one.name}-{number}": one.name for one in self.sets.values() for number in range(one.replicas)}
        for name, pod in list(self.pods.items()):
            if pod.is_leaving or name not in wanted:
                del self.pods[name]
            elif pod.pod_hash in self.mute_makes:
                self.pods[name] = replace(pod, is_ready=False, machine="machine-1", not_ready_seconds=3600)
            elif not pod.is_failing:
                self.pods[name] = replace(pod, is_ready=True, machine="machine-1", machine_address="10.0.0.1")
        for name, owner in wanted.items():
            if name not in self.pods:
                make = self.makes[owner]
                self.pods[name] = SeenPod(
                    name, self._new("pod"), make, is_ready=False, is_failing=make in self.bad_makes
                )
        self.etcd.kubelet(self.pods, self._new, self.now)
        for name, claim in list(self.claims.items()):
            node = name.removeprefix("data-")
            users = {f"{node}-0", f"{node}-vol-0"} & self.pods.keys()
            if claim.is_leaving and not claim.is_held and not users:
                self._take_disk(claim)

    def registrations(self) -> None:
        """Nodes whose pods serve are members; the others are not alive. A retired one is refused."""
        if not self._meta_serves():
            return
        for claim in self.claims.values():
            pod = self.pods.get(f"{claim.name.removeprefix('data-')}-0")
            serves = pod is not None and pod.is_ready and not pod.is_leaving
            member = self.members.get(claim.node_id)
            if member is None and serves:
                disk = f"disk-of-{claim.uid}"
                self.members[claim.node_id] = Node(claim.node_id, disk, "host", 9092)
                self.needed.add(disk)
            elif member is not None:
                self._note_life(member, is_alive=serves and not self._is_released(claim.node_id))

    def _note_life(self, member: Node, *, is_alive: bool) -> None:
        """As the meta service does: each absence has its number, and a force ends with its absence."""
        absences = member.absences + (member.is_alive and not is_alive)
        self.members[member.node_id] = replace(member, is_alive=is_alive, absences=absences)
        record = self.records.get(member.node_id)
        if record is not None and is_alive:
            self.records[member.node_id] = replace(record, is_forced=False)

    def _is_released(self, node_id: int) -> bool:
        record = self.records.get(node_id)
        return record is not None and record.step.is_released

    def retirements(self) -> None:
        """Moves each retirement forward by a step, if it may."""
        if not self._meta_serves() or self.is_meta_away:
            return
        self._serve_volumes()
        for node_id, record in list(self.records.items()):
            if record.step is RetireStep.DONE:
                continue
            wait = None
            following = _STEPS[_STEPS.index(record.step) + 1]
            if record.step is RetireStep.PREFLIGHT and self.blocked is not None:
                wait, following = Wait(self.blocked, "add nodes first", 0), record.step
            if record.step is RetireStep.MOUNT and record.mode is RetireMode.VOLUME and not self._reads_volume(node_id):
                wait, following = Wait(WaitReason.MOUNT_PENDING, "nobody reads it yet", 0), record.step
            if following is RetireStep.RELEASE:
                self._release(node_id, record)
            self.records[node_id] = replace(record, step=following, wait=wait)

    def _release(self, node_id: int, record: Retirement) -> None:
        member = self.members[node_id]
        if record.mode is RetireMode.VOLUME:
            name = f"tier/{node_id}"
            self.meta_mounts[node_id] = Mount(
                name, MountMode.VOLUME, node_id, member.storage_id, MountState.TAKING, 1, 0
            )
        else:
            self.needed.discard(member.storage_id)
        self.members[node_id] = replace(member, is_alive=False)

    def _serve_volumes(self) -> None:
        """A mounted volume is served while a pod reads it."""
        for node_id, mount in self.meta_mounts.items():
            is_read = self._reads_volume(node_id)
            volume = Volume("host", 9092, "start") if is_read else None
            state = MountState.SERVING if is_read else MountState.TAKING
            self.meta_mounts[node_id] = replace(mount, volume=volume, state=state)

    def _reads_volume(self, node_id: int) -> bool:
        return any(pod.is_ready and name.endswith(f"-{node_id}-vol-0") for name, pod in self.pods.items())

    def _take_disk(self, claim: SeenClaim) -> None:
        disk = f"disk-of-{claim.uid}"
        is_kept = claim.half_guard == "volume"
        assert is_kept or disk not in self.needed, f"the last copy of what {disk} has was deleted with {claim.name}"
        del self.claims[claim.name]
        self.hashes.pop(("PersistentVolumeClaim", claim.name), None)

    # What people do ---------------------------------------------------------------------------------------------------
    def scale(self, replicas: int, pool: str = "hot") -> None:
        self.edit_pool({"replicas": replicas}, pool)

    def edit_pool(self, changes: Mapping[str, Any], pool: str = "hot") -> None:
        one = self.pools[pool]
        spec = StorageNodePoolSpec.model_validate({**one.spec.model_dump(by_alias=True), **changes})
        self.pools[pool] = replace(one, spec=spec, generation=one.generation + 1)

    def edit_cluster(self, changes: Mapping[str, Any]) -> None:
        kept = self.cluster.spec.model_dump(by_alias=True, exclude_none=True)
        spec = StorageClusterSpec.model_validate({**kept, **changes})
        self.cluster = replace(self.cluster, spec=spec, generation=self.cluster.generation + 1)

    def annotate_cluster(self, **words: str) -> None:
        given = {f"stratalog.dev/{key.replace('_', '-')}": word for key, word in words.items()}
        self.cluster = replace(self.cluster, annotations={**self.cluster.annotations, **given})

    def wish_to_retire(self, node: str) -> None:
        self.users_wishes.add(node)
        self._reset_retire(node)

    def annotate_node(self, name: str, **words: str) -> None:
        node = self.nodes[name]
        given = {f"stratalog.dev/{key.replace('_', '-')}": word for key, word in words.items()}
        self.nodes[name] = replace(node, annotations={**node.annotations, **given})

    def delete_storage_node(self, name: str) -> None:
        """By hand: it goes at once, and its pod does not, for it is not its owner."""
        del self.nodes[name]
        self.users_wishes.discard(name)
        self.hashes.pop(("StorageNode", name), None)

    def delete_claim(self, name: str) -> None:
        claim = self.claims[name]
        self.claims[name] = replace(claim, is_leaving=True)

    def mount_volume(self, name: str, node_id: int, storage_id: str, mode: str = "RemountVolume") -> None:
        source = {"retiredNode": {"nodeId": node_id, "storageId": storage_id, "mode": mode}}
        spec = ReadOnlyMountSpec.model_validate({"clusterRef": "main", "source": source})
        self.mounts[name] = Seen(name, self._new("mount"), spec, ReadOnlyMountStatus(), created=self.now)

    def delete_mount(self, name: str) -> None:
        mount = self.mounts[name]
        if mount.finalizers:
            self.mounts[name] = replace(mount, is_deleting=True, deleted=mount.deleted or self.now)
        else:
            del self.mounts[name]
            self.sets.pop(f"{name}-vol", None)

    def crash(self, pod: str) -> None:
        self.pods[pod] = replace(self.pods[pod], is_ready=False)

    # What the operator asks for ---------------------------------------------------------------------------------------
    def _do(self, action: act.Action) -> None:
        self.done.append(action)
        match action:
            case act.Apply(manifest):
                self._apply(manifest, action.key)
            case act.MakeToken():
                self.has_token = True
            case act.GuardClaim(name, uid):
                self._guard(name, uid)
            case act.UnguardClaim(name, uid):
                self._check_release(name, uid)
                self._change_claim(name, uid, is_guarded=False, half_guard="")
            case act.ReleaseClaim(name, uid):
                self._change_claim(name, uid, is_released=True)
            case act.NoteDisk(name, uid, storage_id, cluster_id):
                self._change_claim(name, uid, storage_id=storage_id, cluster_id=cluster_id)
            case act.NoteMember(name, uid, member_id):
                self._change_claim(name, uid, member_id=member_id)
            case act.MakeTopic() | act.ChangeTopic() | act.RemoveTopic() | act.MakeMount():
                self._change_topics(action)
            case act.AskSeal() | act.AskRolls():
                self._ask_rolls(action)
            case act.MakeRules() | act.RemoveRules() | act.PutPassword() | act.RemoveCredentials() | act.PutQuotas():
                assert self._meta_serves() and not self.is_meta_away, f"nobody is there to be asked: {action}"
                self.kept.do(action, self.now)
            case act.PutRoles():
                assert self.roles is not None, "it was seen"
                self.roles = replace(self.roles, is_published=True)
            case act.RenewCertificates() | act.PutCertificate():
                raise AssertionError("this world has no listener with TLS")
            case act.AskRetire() | act.CancelRetire() | act.EndMount():
                self._ask_meta(action)
            case act.AddFinalizer(kind, name) | act.DropFinalizer(kind, name):
                self._change_finalizer(kind, name, is_added=isinstance(action, act.AddFinalizer))
            case act.DropDecision(kind, name, uid, annotation):
                self._drop_decision(kind, name, uid, annotation)
            case act.StopPod(name, uid):
                self._stop_pod(name, uid)
            case act.StopSet(name, uid):
                self._stop_set(name, uid)
            case act.DeleteClaim(name, uid):
                self._check_release(name, uid)
                self._change_claim(name, uid, is_leaving=True)
            case act.DeleteObject(kind, name):
                self._delete(kind, name)
            case act.RemoveEtcdMember(member_id):
                self.etcd.remove(member_id)
            case act.AddEtcdMember(number):
                self.etcd.add(number)
            case act.PromoteEtcdMember(member_id):
                self.etcd.promote(member_id)

    def _guard(self, name: str, uid: str) -> None:
        """Kubernetes gives no finalizer to what is being deleted: then only the volume is kept."""
        claim = self.claims.get(name) or self.etcd.claims[name]
        if claim.is_leaving and not claim.is_held:
            self._change_claim(name, uid, half_guard="volume")
        else:
            self._change_claim(name, uid, is_guarded=True, half_guard="")

    def _drop_decision(self, kind: str, name: str, uid: str, annotation: str) -> None:
        if kind == "PersistentVolumeClaim":
            self._change_claim(name, uid, release_word="")
            return
        node = self.nodes[name]
        kept = {key: word for key, word in node.annotations.items() if key != annotation}
        self.nodes[name] = replace(node, annotations=kept)

    def _apply(self, manifest: Manifest, key: tuple[str, str]) -> None:
        kind, name = key
        assert kind not in _USERS, f"{kind} {name} is written by users alone"
        body: Any = manifest
        metadata = body["metadata"]
        self.hashes[key] = metadata["annotations"][ANNOTATION_WANTED_HASH]
        self.wanted_once.add(key)
        match kind:
            case "StorageNode":
                before = self.nodes.get(name)
                status = StorageNodeStatus() if before is None else before.status
                uid = self._new("node") if before is None else before.uid
                spec = StorageNodeSpec.model_validate(body["spec"])
                chosen = {ANNOTATION_CHOSEN: "true"} if ANNOTATION_CHOSEN in metadata["annotations"] else {}
                theirs = {} if before is None else before.annotations
                theirs = {key: word for key, word in theirs.items() if key != ANNOTATION_CHOSEN}
                self.nodes[name] = Seen(name, uid, spec, status, annotations={**theirs, **chosen})
                self._reset_retire(name)
            case "StatefulSet":
                before_set = self.sets.get(name)
                uid = self._new("set") if before_set is None else before_set.uid
                labels, is_node = metadata["labels"], metadata["labels"].get(LABEL_PART) == "node"
                pool, number = (labels[LABEL_POOL], int(labels[LABEL_NODE_ID])) if is_node else ("", None)
                self.sets[name] = SeenSet(name, uid, body["spec"]["replicas"], pool, number)
                self.makes[name] = body["spec"]["template"]["metadata"]["annotations"][ANNOTATION_POD_HASH]
            case "PersistentVolumeClaim" if name not in self.claims:
                labels = metadata["labels"]
                self.claims[name] = SeenClaim(
                    name,
                    self._new("claim"),
                    labels[LABEL_POOL],
                    int(labels[LABEL_NODE_ID]),
                    zone=labels.get(LABEL_ZONE),
                )
            case "ConfigMap" if name == "main-etcd":
                self.etcd.read_files(body["data"])
            case "ReadOnlyMount" if name not in self.mounts:
                spec_of_mount = ReadOnlyMountSpec.model_validate(body["spec"])
                self.mounts[name] = Seen(name, self._new("mount"), spec_of_mount, ReadOnlyMountStatus())
            case _:
                pass

    def _reset_retire(self, name: str) -> None:
        """Both may wish it; ours goes with our apply, a person's stays."""
        node = self.nodes[name]
        is_wished = ANNOTATION_CHOSEN in node.annotations or name in self.users_wishes
        self.nodes[name] = replace(node, spec=node.spec.model_copy(update={"retire": is_wished}))

    def _change_claim(self, name: str, uid: str, **changes: Any) -> None:
        for claims in (self.claims, self.etcd.claims):
            claim = claims.get(name)
            if claim is not None and claim.uid == uid:
                claims[name] = replace(claim, **changes)

    def _check_release(self, name: str, uid: str) -> None:
        """Only what is proven is released, whatever the policy makes of it then."""
        claim = self.claims.get(name)
        if claim is None or claim.uid != uid or is_going(self.observe()) or is_given_up(claim):
            return
        record, member = self.records.get(claim.node_id), self.members.get(claim.node_id)
        if not claim.storage_id:
            assert member is None, f"{name} is released, and its node has joined"
            return
        assert record is not None and record.storage_id == claim.storage_id, f"{name} is released: {record}"
        assert record.step is RetireStep.DONE, f"{name} is released at step {record.step}"
        mount = self.meta_mounts.get(claim.node_id)
        assert mount is None or mount.mode is not MountMode.VOLUME, f"{name} is released, and {mount} reads it"

    def _ask_meta(self, action: act.AskRetire | act.CancelRetire | act.EndMount) -> None:
        assert self._meta_serves() and not self.is_meta_away, f"nobody is there to be asked: {action}"
        match action:
            case act.AskRetire(node_id, mode, forced, absence):
                bare = [claim.name for claim in self.claims.values() if claim.node_id == node_id and not claim.is_safe]
                assert not bare, f"node {node_id} is to leave, and nothing guards {bare}"
                if node_id not in self.records:
                    disk = self.members[node_id].storage_id
                    self.records[node_id] = Retirement(disk, mode, RetireStep.PREFLIGHT, 0, 0)
                member = self.members[node_id]
                if forced is not None and not member.is_alive:
                    assert (forced, absence) == (member.storage_id, member.absences), f"a stale force: {action}"
                    self.records[node_id] = replace(self.records[node_id], is_forced=True)
            case act.CancelRetire(node_id):
                assert not self._is_released(node_id), "past the point of no return"
                self.records.pop(node_id, None)
            case act.EndMount(name) if name in self.user_mounts:
                del self.user_mounts[name]
            case act.EndMount(name):
                node_id = int(name.removeprefix("tier/"))
                self.needed.discard(self.meta_mounts.pop(node_id).storage_id)

    def _change_topics(self, action: act.MakeTopic | act.ChangeTopic | act.RemoveTopic | act.MakeMount) -> None:
        assert self._meta_serves() and not self.is_meta_away, f"nobody is there to be asked: {action}"
        match action:
            case act.MakeTopic(_, name, shards, replicas, given):
                assert name not in self.meta_topics, f"topic {name} is made twice"
                self.make_topic(name, shards or 1, replicas, given)
            case act.ChangeTopic(_, topic_id, given, before, shards):
                (topic,) = [one for one in self.meta_topics.values() if one.topic_id == topic_id]
                if dict(topic.settings) == before:
                    count = topic.shard_count if shards is None else shards
                    self.meta_topics[topic.name] = replace(topic, settings=given, shard_count=count)
            case act.RemoveTopic(_, topic_id):
                self.meta_topics = {name: one for name, one in self.meta_topics.items() if one.topic_id != topic_id}
            case act.MakeMount(name, names, _, _, lasts_ms, snapshot):
                assert name not in self.user_mounts, f"mount {name} is made twice"
                names = names or tuple(self.meta_topics) if snapshot else names
                mounted = tuple(
                    MountedTopic(self.meta_topics[one].topic_id, one, (OffsetRange(0, 40),)) for one in names
                )
                self.user_mounts[name] = Mount(
                    name, MountMode.HAND_MADE, -1, "", MountState.SERVING, 1, 0, topics=mounted, expires_ms=lasts_ms
                )

    def _ask_rolls(self, action: act.AskSeal | act.AskRolls) -> None:
        assert self._meta_serves() and not self.is_meta_away, f"nobody is there to be asked: {action}"
        if isinstance(action, act.AskRolls):
            self.rebalance = replace(self.rebalance, pending_shards=len(action.segments))
            return
        (topic,) = [one for one in self.meta_topics.values() if one.topic_id == action.topic_id]
        assert topic.seal_asked_ms < action.asked_ms, "a request is made once"
        self.meta_topics[topic.name] = replace(topic, seal_asked_ms=action.asked_ms)
        self.asked_rolls[topic.name] = topic.shard_count

    def rolls(self) -> None:
        """All segments end that were asked to."""
        self.asked_rolls.clear()
        self.rebalance = replace(self.rebalance, pending_shards=0)

    def make_topic(self, name: str, shards: int = 1, replicas: int = 3, given: Mapping[str, str] | None = None) -> None:
        self._numbers += 1
        self.meta_topics[name] = Topic(name, UUID(int=self._numbers), shards, replicas, given or {}, 0)

    def _change_finalizer(self, kind: str, name: str, *, is_added: bool) -> None:
        words = frozenset({"stratalog.dev/operator"} if is_added else ())
        if kind == "StorageCluster":
            self.cluster = replace(self.cluster, finalizers=words)
            return
        place = self._place(kind)
        place[name] = replace(place[name], finalizers=words)
        if place[name].is_deleting and not words:
            del place[name]
            for one in [one for one in self.sets if kind == "ReadOnlyMount" and one == f"{name}-vol"]:
                del self.sets[one]

    def _stop_pod(self, name: str, uid: str) -> None:
        pod = self.pods[name]
        assert pod.uid == uid
        others = [other for other in self.pods.values() if other.name != name and not other.name.endswith("-vol-0")]
        if pod.is_ready:
            idle = [other.name for other in others if not other.is_ready and not self._may_be_down(other.name)]
            assert not idle, f"{name} serves and was stopped while {idle} do not"
        self.pods[name] = replace(pod, is_leaving=True, is_ready=False)

    def _may_be_down(self, pod: str) -> bool:
        """Of a node that has left, or never joined and is not wanted."""
        node = self.nodes.get(pod.removesuffix("-0"))
        if node is None:
            return False
        node_id = node.spec.node_id
        return self._is_released(node_id) or (node.spec.retire and node_id not in self.members)

    def _stop_set(self, name: str, uid: str) -> None:
        found = self.sets[name]
        assert found.uid == uid
        node = self.nodes[name]
        assert node.spec.node_id not in self.members or self._is_released(node.spec.node_id), f"{name} still serves"
        self.sets[name] = replace(found, replicas=0)

    def _delete(self, kind: str, name: str) -> None:
        self.hashes.pop((kind, name), None)
        if kind == "StatefulSet":
            self.sets.pop(name, None)
        elif kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            assert (kind, name) in self.wanted_once, f"{kind} {name} is not the operator's"
        else:
            assert kind == "StorageNode"
            self.nodes.pop(name, None)
            self.users_wishes.discard(name)

    def _place(self, kind: str) -> dict[str, Any]:
        places: dict[str, dict[str, Any]] = {
            "StorageNodePool": self.pools,
            "StorageNode": self.nodes,
            "TopicStorage": self.topics,
            "StorageUser": self.users,
            "ReadOnlyMount": self.mounts,
        }
        return places[kind]

    def _write_status(self, kind: str, name: str, status: Any) -> None:
        if kind == "StorageCluster":
            self.cluster = replace(self.cluster, status=status)
            return
        place = self._place(kind)
        if name in place:
            place[name] = replace(place[name], status=status)

    def _new(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}-{self._numbers}"

    # What tests look at -----------------------------------------------------------------------------------------------
    def node_ids(self) -> list[int]:
        return sorted(node.spec.node_id for node in self.nodes.values())

    def condition(self, kind: str, name: str, type_: str) -> Condition:
        one_of = {"main": self.cluster} if kind == "StorageCluster" else self._place(kind)
        (found,) = [one for one in one_of[name].status.conditions if one.type == type_]
        assert isinstance(found, Condition)
        return found

    def uids(self) -> dict[str, str]:
        return {name: pod.uid for name, pod in self.pods.items()}


def world(replicas: int = 3, spec: Mapping[str, Any] | None = None, pool: Mapping[str, Any] | None = None) -> World:
    """A cluster that was just applied: nothing of it is there yet."""
    made = World()
    given = StorageClusterSpec.model_validate({"meta": {"etcd": {}}, **(spec or {})})
    made.cluster = Seen("main", "uid-of-main", given, StorageClusterStatus())
    add_pool(made, "hot", replicas, pool)
    return made


def settled(replicas: int = 3, **more: Any) -> World:
    """All of it is there, and what was done for that is forgotten."""
    made = world(replicas, **more)
    made.settle()
    made.done.clear()
    return made


def add_pool(made: World, name: str, replicas: int, pool: Mapping[str, Any] | None = None) -> None:
    given = {"clusterRef": "main", "storage": {"size": "10Gi"}, "replicas": replicas, **(pool or {})}
    spec = StorageNodePoolSpec.model_validate(given)
    made.pools[name] = Seen(name, f"uid-of-{name}", spec, StorageNodePoolStatus())


def kinds_of(actions: Iterable[act.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
