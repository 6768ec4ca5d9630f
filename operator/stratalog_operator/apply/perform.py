"""Performs a pass: the actions of the cluster in order, then the statuses of the cluster, its pools, nodes and mounts,
then actions and statuses of topics and users. These run side by side, and `Turns` limits how many a pass handles.

A failed action blocks only the disruptive actions that need it (`failures.is_needed_by`): a pod is not stopped if its
StatefulSet could not be changed. A pass then performs the next disruptive action instead, and at most one of them. For
a cluster that is being deleted it performs all of them.

Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, Protocol, TypeAlias, assert_never, get_args
from uuid import UUID

from stratalog.model.errors import Conflict, InvalidRequest, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.quotas import QuotaChange
from stratalog.model.retirement import RetireMode
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.apply.parking import Parking
from stratalog_operator.apply.role_hashes import put_roles
from stratalog_operator.apply.turns import Turns
from stratalog_operator.apply.user_certificates import put_certificate
from stratalog_operator.apply.user_passwords import put_password
from stratalog_operator.apply.writes import Writes
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.deletion import is_going
from stratalog_operator.plan.failures import Failure, Subject, is_needed_by, objects_of, subject_of, told_with
from stratalog_operator.plan.faults import where_fault, why_fault
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.orphans import OrphanPlan
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.names import (
    ANNOTATION_CLUSTER_ID,
    ANNOTATION_ETCD_MEMBER,
    ANNOTATION_STORAGE_ID,
    FIELD_MANAGER,
    FINALIZER,
    LABEL_RELEASED,
)
from stratalog_operator.resources.schema import Part
from stratalog_operator.specs.cluster import token_secret
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.settings_file import settings_text

DISRUPTIVE: Final = get_args(act.Disruptive)
REVOKING: Final = (act.RemoveCredentials, act.RemoveRules)
CLUSTER: Final = "StorageCluster"
TOPIC: Final = "TopicStorage"
USER: Final = "StorageUser"
ARCHIVE_JOB: Final = "ArchiveJob"
IN_TURNS: Final = (TOPIC, USER, ARCHIVE_JOB)
"""Kinds of which there are hundreds."""
RANK: Final = (CLUSTER, "StorageNodePool", "StorageNode", "ReadOnlyMount", TOPIC, USER, ARCHIVE_JOB)
"""In which order statuses are written."""
AT_ONCE: Final = 8
"""Statuses that are written at the same time, and topics, users and finalizers that are: they do not depend on one
another."""

log = logger(__name__)


class MetaRequests(Protocol):
    """Requests to the meta service. Each may be repeated."""

    async def retire(
        self, node_id: int, mode: RetireMode, force_storage_id: str | None, force_absence: int | None
    ) -> None: ...

    async def cancel(self, node_id: int) -> None: ...

    async def end_mount(self, mount: str) -> None: ...

    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None: ...

    async def change_topic(self, change: act.ChangeTopic, process: ProcessSettings) -> None: ...

    async def remove_topic(self, topic_id: UUID) -> None: ...

    async def seal_topic(self, topic_id: UUID, asked_ms: int) -> None: ...

    async def roll_elsewhere(self, segments: tuple[SegmentKey, ...]) -> None: ...

    async def make_mount(self, made: act.MakeMount) -> None: ...

    async def make_rules(self, rules: tuple[Rule, ...]) -> None: ...

    async def remove_rules(self, rules: tuple[Rule, ...]) -> None: ...

    async def alter_quotas(self, user: str, changes: tuple[QuotaChange, ...]) -> None: ...

    async def put_credential(self, credential: UserCredential) -> None: ...

    async def remove_credentials(self, names: tuple[CredentialName, ...]) -> None: ...


class EtcdRequests(Protocol):
    """Changes of the members of the operator's etcd. Each may be repeated."""

    async def remove(self, member_id: str) -> None: ...

    async def add(self, peer_url: str) -> None: ...

    async def update(self, member_id: str, peer_url: str) -> None: ...

    async def promote(self, member_id: str) -> None: ...


Do: TypeAlias = Callable[[Observed, act.Action], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Performed:
    failed: list[StratalogError]
    """Errors that may go away without a person."""
    refused: list[StratalogError]
    """Errors that need a person, and are reported. Actions that were refused before and wait for their next attempt are
    not among them."""
    written: dict[tuple[str, str], Part]
    """Statuses, by kind and name."""
    done: int = 0
    """Actions."""
    undone: tuple[act.Action, ...] = ()
    """Actions that failed, that wait for one that did, or whose topic or user has its turn later."""
    left: int = 0
    """Topics and users with something to do or to report that wait for a later pass."""


class Performer:
    def __init__(
        self,
        kubernetes: Kubernetes,
        meta: MetaRequests,
        parking: Parking | None = None,
        turns: Turns | None = None,
        etcd: EtcdRequests | None = None,
    ) -> None:
        """`parking` and `turns` are kept from pass to pass."""
        self._kubernetes = kubernetes
        self._writes = Writes(kubernetes)
        self._meta = meta
        self._etcd = etcd
        self._parking = parking or Parking(time.monotonic)
        self._turns = turns or Turns()

    async def perform(self, seen: Observed, plan: act.Plan) -> Performed:
        """The caller tells the news of what was written, and looks again: later each time while something fails."""
        self._parking.keep((*plan.actions, *plan.instead))
        doing = _Doing(self.do, self._writes, self._parking, seen)
        # A cluster that goes is waited for by a namespace, and by nothing else of its own: all of it at once.
        whole, in_turns = (plan.actions, {}) if is_going(seen) else apart(plan.actions)
        disruptive = [action for action in whole if isinstance(action, DISRUPTIVE)]
        for stretch in stretches(action for action in whole if not isinstance(action, DISRUPTIVE)):
            await doing.attempt_all([action] for action in stretch)
        if is_going(seen):
            await doing.attempt_all([action] for action in disruptive)
        else:
            await doing.attempt_first([*disruptive, *plan.instead])
        of_whole = {key: status for key, status in plan.statuses.items() if key[0] not in IN_TURNS}
        await doing.write_statuses(told_with(seen, of_whole, doing.failures))
        left = await self._perform_in_turns(seen, plan, in_turns, doing)
        return Performed(doing.failed, doing.refused, doing.written, doing.done, tuple(doing.undone), left)

    async def _perform_in_turns(
        self, seen: Observed, plan: act.Plan, in_turns: Mapping[Subject, list[act.Action]], doing: _Doing
    ) -> int:
        """Returns how many are left."""
        statuses = {key: status for key, status in plan.statuses.items() if key[0] in IN_TURNS}
        parked = [
            Failure(action, error)
            for actions in in_turns.values()
            for action in actions
            if (error := self._parking.refused(action)) is not None
        ]
        due = {
            subject
            for subject, actions in in_turns.items()
            if any(self._parking.refused(one) is None for one in actions)
        }
        revoking = {subject for subject in due if any(isinstance(one, REVOKING) for one in in_turns[subject])}
        renewing = {subject for subject in due if all(map(_is_renewal, in_turns[subject]))}
        turn, left = self._turns.choose(due | set(told_with(seen, statuses, parked)), revoking, renewing)
        doing.failures = []
        lanes = [(subject, actions) for subject, actions in in_turns.items() if subject in turn]
        # Few are attempted at a time: what takes rights away does not wait for what gives them.
        lanes.sort(key=lambda lane: lane[0] not in revoking)
        await doing.attempt_all(actions for _, actions in lanes)
        doing.undone += (one for subject, actions in in_turns.items() if subject not in turn for one in actions)
        statuses = {key: status for key, status in statuses.items() if key in turn}
        await doing.write_statuses(told_with(seen, statuses, doing.failures))
        return left

    async def do(self, seen: Observed, action: act.Action) -> None:
        # The meta service and etcd are asked past the client that refuses writes without the lease.
        self._kubernetes.may_write()
        namespace = seen.namespace
        match action:
            case act.Apply(manifest):
                if not seen.hashes.get(action.key):
                    await self._writes.require_own(namespace, manifest)
                await self._writes.apply(path_of(*_named(action, namespace)), manifest, FIELD_MANAGER)
            case act.MakeToken():
                made = token_secret(cluster_of(seen), secrets.token_urlsafe(32))
                with suppress(Conflict):  # it is there
                    await self._writes.create("Secret", namespace, made)
            case act.GuardClaim(name, uid):
                await self._writes.guard(namespace, name, uid)
            case act.UnguardClaim(name, uid, keeps_volume):
                await self._writes.unguard(namespace, name, uid, keeps_volume=keeps_volume)
            case act.ReleaseClaim(name, uid):
                await self._writes.mark(namespace, name, uid, {"labels": {LABEL_RELEASED: "true"}})
            case act.NoteDisk(name, uid, storage_id, cluster_id):
                notes = {ANNOTATION_STORAGE_ID: storage_id, ANNOTATION_CLUSTER_ID: cluster_id}
                await self._writes.mark(namespace, name, uid, {"annotations": notes})
            case act.NoteMember(name, uid, member_id):
                await self._writes.mark(namespace, name, uid, {"annotations": {ANNOTATION_ETCD_MEMBER: member_id}})
            case act.AskRetire(node_id, mode, force_storage_id, force_absence):
                await self._meta.retire(node_id, mode, force_storage_id, force_absence)
            case act.CancelRetire(node_id):
                await self._meta.cancel(node_id)
            case act.EndMount(mount):
                await self._meta.end_mount(mount)
            case act.RemoveEtcdMember() | act.AddEtcdMember() | act.UpdateEtcdMember() | act.PromoteEtcdMember():
                await self._change_etcd(action)
            case act.MakeTopic():
                await self._meta.make_topic(action, process_settings(cluster_of(seen)))
            case act.ChangeTopic():
                await self._meta.change_topic(action, process_settings(cluster_of(seen)))
            case act.AskSeal() | act.AskRolls():
                await self._ask_rolls(action)
            case act.RemoveTopic(_, topic_id):
                await self._meta.remove_topic(topic_id)
            case act.MakeMount():
                await self._meta.make_mount(action)
            case act.MakeRules(_, rules):
                await self._meta.make_rules(rules)
            case act.RemoveRules(_, _, rules):
                await self._meta.remove_rules(rules)
            case act.PutQuotas(_, _, user, changes):
                await self._meta.alter_quotas(user, changes)
            case act.PutPassword():
                await put_password(self._kubernetes, self._meta, namespace, seen.now, action)
            case act.PutCertificate():
                await put_certificate(self._kubernetes, cluster_of(seen), seen.now, action)
            case act.RemoveCredentials(_, names):
                await self._meta.remove_credentials(names)
            case act.RenewCertificates():
                await renew_certificates(self._kubernetes, cluster_of(seen), seen.now, action)
            case act.PutRoles():
                await put_roles(self._kubernetes, cluster_of(seen), action)
            case act.AddFinalizer(kind, name) | act.DropFinalizer(kind, name):
                is_held = isinstance(action, act.AddFinalizer)
                await self._writes.hold(namespace, kind, name, FINALIZER, is_held=is_held)
            case act.DropDecision(kind, name, uid, annotation):
                await self._writes.note(namespace, kind, name, uid, {annotation: None})
            case act.StopPod(name, uid) | act.DeleteClaim(name, uid):
                kind = "Pod" if isinstance(action, act.StopPod) else "PersistentVolumeClaim"
                await self._writes.delete(kind, namespace, name, uid)
            case act.StopSet(name, uid):
                await self._writes.stop(namespace, name, uid)
            case act.DeleteObject(kind, name, uid):
                await self._writes.delete(kind, namespace, name, uid)
            case _:
                assert_never(action)

    async def _ask_rolls(self, action: act.AskSeal | act.AskRolls) -> None:
        match action:
            case act.AskSeal(_, topic_id, asked_ms):
                await self._meta.seal_topic(topic_id, asked_ms)
            case act.AskRolls(segments):
                await self._meta.roll_elsewhere(segments)

    async def _change_etcd(
        self, action: act.RemoveEtcdMember | act.AddEtcdMember | act.UpdateEtcdMember | act.PromoteEtcdMember
    ) -> None:
        assert self._etcd is not None, "its members were listed by it"
        match action:
            case act.RemoveEtcdMember(member_id):
                await self._etcd.remove(member_id)
            case act.AddEtcdMember(_, peer_url):
                await self._etcd.add(peer_url)
            case act.UpdateEtcdMember(member_id, peer_url):
                await self._etcd.update(member_id, peer_url)
            case act.PromoteEtcdMember(member_id):
                await self._etcd.promote(member_id)


class _Doing:
    """Of one pass: does, notes what failed, and writes statuses."""

    def __init__(self, do: Do, writes: Writes, parking: Parking, seen: Observed) -> None:
        self._do, self._writes, self._parking, self._seen = do, writes, parking, seen
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._uids = {subject: one.uid for subject, one in objects_of(seen).items()}
        self.failures: list[Failure] = []
        self.failed: list[StratalogError] = []
        self.refused: list[StratalogError] = []
        self.written: dict[tuple[str, str], Part] = {}
        self.undone: list[act.Action] = []
        self.done = 0

    async def attempt_all(self, lanes: Iterable[Iterable[act.Action]]) -> None:
        """Attempts the lanes side by side, and the actions of each lane in order."""
        async with asyncio.TaskGroup() as doing:
            for lane in lanes:
                doing.create_task(self._attempt_lane(lane))

    async def attempt_first(self, candidates: Iterable[act.Action]) -> None:
        """Attempts the first action that was not refused lately and does not need an action that failed."""
        for action in candidates:
            if any(is_needed_by(action, failure.action) for failure in self.failures):
                continue
            is_refused = self._parking.refused(action) is not None
            await self._attempt(action)
            if not is_refused:
                return

    async def _attempt_lane(self, lane: Iterable[act.Action]) -> None:
        async with self._slots:
            for action in lane:
                await self._attempt(action)

    async def _attempt(self, action: act.Action) -> None:
        refused = self._parking.refused(action)
        if refused is not None:
            self.failures.append(Failure(action, refused))
            self.undone.append(action)
            return
        if any(is_needed_by(action, failure.action) for failure in self.failures):
            self.undone.append(action)
            return
        try:
            await self._do(self._seen, action)
            self.done += 1
        except StratalogError as error:
            self._note(action, error)
        except Exception as error:  # a fault that one object uncovers must not end the pass over all others
            log.error("an action ended on a fault of the operator", action=type(action).__name__, **where_fault(error))
            self._note(action, InvalidRequest(why_fault(error)))

    def _note(self, action: act.Action, error: StratalogError) -> None:
        failure = Failure(action, error)
        self.failures.append(failure)
        self.undone.append(action)
        if failure.lasts:
            self._parking.park(action, error)
            self.refused.append(error)
        else:
            self.failed.append(error)

    async def write_statuses(self, statuses: Mapping[tuple[str, str], Part]) -> None:
        """Writes the statuses, the cluster's first, because users watch it."""
        async with asyncio.TaskGroup() as telling:
            for kind, name in sorted(statuses, key=lambda key: RANK.index(key[0])):
                telling.create_task(self._write_status(kind, name, statuses[kind, name]))

    async def _write_status(self, kind: str, name: str, status: Part) -> None:
        try:
            async with self._slots:
                await self._writes.write_status(self._seen.namespace, kind, name, status, self._uids[kind, name])
            self.written[kind, name] = status
        except StratalogError as error:
            self.failed.append(error)
        except Exception as error:
            log.error("a status could not be written", object=f"{kind} {name}", **where_fault(error))
            self.failed.append(InvalidRequest(why_fault(error)))


def apart(actions: Iterable[act.Action]) -> tuple[list[act.Action], dict[Subject, list[act.Action]]]:
    """What is of the cluster, and what is of each TopicStorage, StorageUser and ArchiveJob, all in their order."""
    whole: list[act.Action] = []
    in_turns: dict[Subject, list[act.Action]] = {}
    for action in actions:
        match action:
            case act.MakeTopic() | act.ChangeTopic() | act.RemoveTopic() | act.AskSeal():
                in_turns.setdefault((TOPIC, action.owner), []).append(action)
            case act.MakeRules() | act.RemoveRules() | act.RemoveCredentials() | act.PutQuotas():
                in_turns.setdefault((USER, action.owner), []).append(action)
            case act.PutPassword(owner) | act.PutCertificate(owner):
                in_turns.setdefault((USER, owner.name), []).append(action)
            case act.Apply() if subject_of(action)[0] == ARCHIVE_JOB:
                in_turns.setdefault(subject_of(action), []).append(action)
            case act.AddFinalizer(kind, name) | act.DropFinalizer(kind, name) if kind in IN_TURNS:
                in_turns.setdefault((kind, name), []).append(action)
            case _:
                whole.append(action)
    return whole, in_turns


def stretches(actions: Iterable[act.Action]) -> Iterator[list[act.Action]]:
    """What may be done at the same time: finalizers of several objects that follow each other, but for the cluster's
    own, which comes before or after all else; and everything else by itself."""
    for are_finalizers, found in groupby(actions, _is_finalizer):
        if are_finalizers:
            yield list(found)
        else:
            yield from ([action] for action in found)


def _is_renewal(action: act.Action) -> bool:
    """Another password or certificate for a user that has one."""
    return isinstance(action, act.PutPassword | act.PutCertificate) and bool(action.secret_uid)


def _is_finalizer(action: act.Action) -> bool:
    return isinstance(action, act.AddFinalizer | act.DropFinalizer) and action.kind != CLUSTER


def _named(action: act.Apply, namespace: str) -> tuple[str, str, str]:
    kind, name = action.key
    return kind, namespace, name


def process_settings(cluster: Cluster) -> ProcessSettings:
    """As the nodes read them: what a topic does not set is theirs."""
    return _read(settings_text(cluster), has_bucket=cluster.spec.cold_tier is not None)


@lru_cache(maxsize=16)
def _read(text: str, *, has_bucket: bool) -> ProcessSettings:
    return load_process_settings(assignments=text.splitlines(), has_bucket=has_bucket)


async def let_orphans_go(kubernetes: Kubernetes, namespace: str, plan: OrphanPlan) -> list[StratalogError]:
    """Of a cluster that is not there. Returns what failed."""
    writes = Writes(kubernetes)
    failed: list[StratalogError] = []
    slots = asyncio.Semaphore(AT_ONCE)

    async def attempt(request: Awaitable[None]) -> None:
        try:
            async with slots:
                await request
        except StratalogError as error:
            failed.append(error)

    async with asyncio.TaskGroup() as doing:
        for action in plan.actions:
            doing.create_task(attempt(_let_go(writes, namespace, action)))
        for (kind, name), status in plan.statuses.items():
            doing.create_task(attempt(writes.write_status(namespace, kind, name, status, plan.uids[kind, name])))
    return failed


async def _let_go(
    writes: Writes, namespace: str, action: act.DropFinalizer | act.UnguardClaim | act.DeleteObject
) -> None:
    match action:
        case act.DeleteObject(kind, name, uid):
            await writes.delete(kind, namespace, name, uid)
        case act.DropFinalizer(kind, name):
            await writes.hold(namespace, kind, name, FINALIZER, is_held=False)
        case act.UnguardClaim(name, uid, keeps_volume):
            await writes.unguard(namespace, name, uid, keeps_volume=keeps_volume)
        case _:
            assert_never(action)
