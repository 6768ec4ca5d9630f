"""Performs the actions of a pass in their order, those of topics that follow each other side by side, then writes the
statuses.

An action that fails keeps none of the additive ones from being done, and all that is disruptive: that is planned again
from what is there then.

Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, Protocol, assert_never, get_args
from uuid import UUID

from stratalog.model.errors import Conflict, StratalogError
from stratalog.model.retirement import RetireMode
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings
from stratalog_operator.apply.parking import Parking
from stratalog_operator.apply.writes import Writes
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.failures import Failure, told_with
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.orphans import OrphanPlan
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.names import (
    ANNOTATION_CLUSTER_ID,
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
TOPICS: Final = (act.MakeTopic, act.ChangeTopic, act.RemoveTopic)
AT_ONCE: Final = 8
"""Statuses that are written at the same time, and topics that are: they do not depend on one another."""


class MetaDesk(Protocol):
    """Where wishes are stated to the meta service. Each may be repeated."""

    async def retire(self, node_id: int, mode: RetireMode, force_storage_id: str | None) -> None: ...

    async def cancel(self, node_id: int) -> None: ...

    async def end_mount(self, mount: str) -> None: ...

    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None: ...

    async def change_topic(self, change: act.ChangeTopic, process: ProcessSettings) -> None: ...

    async def remove_topic(self, topic_id: UUID) -> None: ...

    async def make_mount(self, made: act.MakeMount) -> None: ...


@dataclass(frozen=True, slots=True)
class Performed:
    failed: list[StratalogError]
    """What may pass by itself."""
    refused: list[StratalogError]
    """What does not, and is told; what was refused before, and is waited with, is not among them."""
    written: dict[tuple[str, str], Part]
    """Statuses, by kind and name."""


class Performer:
    def __init__(self, kubernetes: Kubernetes, meta: MetaDesk, parking: Parking | None = None) -> None:
        """`parking` is kept from pass to pass."""
        self._writes = Writes(kubernetes)
        self._meta = meta
        self._parking = parking or Parking(time.monotonic)

    async def perform(self, seen: Observed, plan: act.Plan) -> Performed:
        """The caller tells the news of what was written, and looks again: later each time while something fails."""
        failures: list[Failure] = []
        failed: list[StratalogError] = []
        refusals: list[StratalogError] = []
        self._parking.keep(plan.actions)
        turns = asyncio.Semaphore(AT_ONCE)

        async def attempt(action: act.Action) -> None:
            refused = self._parking.refused(action)
            if refused is not None:
                failures.append(Failure(action, refused))
                return
            try:
                async with turns:
                    await self.do(seen, action)
            except StratalogError as error:
                failure = Failure(action, error)
                failures.append(failure)
                if failure.lasts:
                    self._parking.park(action, error)
                    refusals.append(error)
                else:
                    failed.append(error)

        for stretch in stretches(plan.actions):
            if isinstance(stretch[0], DISRUPTIVE) and any(one.is_of_cluster for one in failures):
                break
            async with asyncio.TaskGroup() as doing:
                for action in stretch:
                    doing.create_task(attempt(action))
        written: dict[tuple[str, str], Part] = {}

        async def tell(kind: str, name: str, status: Part) -> None:
            try:
                async with turns:
                    await self._writes.tell(seen.namespace, kind, name, status)
                written[kind, name] = status
            except StratalogError as error:
                failed.append(error)

        async with asyncio.TaskGroup() as telling:
            for (kind, name), status in told_with(seen, plan.statuses, failures).items():
                telling.create_task(tell(kind, name, status))
        return Performed(failed, refusals, written)

    async def do(self, seen: Observed, action: act.Action) -> None:
        namespace = seen.namespace
        match action:
            case act.Apply(manifest):
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
            case act.AskRetire(node_id, mode, force_storage_id):
                await self._meta.retire(node_id, mode, force_storage_id)
            case act.CancelRetire(node_id):
                await self._meta.cancel(node_id)
            case act.EndMount(mount):
                await self._meta.end_mount(mount)
            case act.MakeTopic():
                await self._meta.make_topic(action, process_settings(cluster_of(seen)))
            case act.ChangeTopic():
                await self._meta.change_topic(action, process_settings(cluster_of(seen)))
            case act.RemoveTopic(_, topic_id):
                await self._meta.remove_topic(topic_id)
            case act.MakeMount():
                await self._meta.make_mount(action)
            case act.AddFinalizer(kind, name):
                await self._writes.hold(namespace, kind, name, FINALIZER, is_held=True)
            case act.DropFinalizer(kind, name):
                await self._writes.hold(namespace, kind, name, FINALIZER, is_held=False)
            case act.StopPod(name, uid):
                await self._writes.delete("Pod", namespace, name, uid)
            case act.StopSet(name, uid):
                await self._writes.stop(namespace, name, uid)
            case act.DeleteClaim(name, uid):
                await self._writes.delete("PersistentVolumeClaim", namespace, name, uid)
            case act.DeleteObject(kind, name, uid):
                await self._writes.delete(kind, namespace, name, uid)
            case _:
                assert_never(action)


def stretches(actions: Iterable[act.Action]) -> Iterator[list[act.Action]]:
    """What may be done at the same time: topics that follow each other, and everything else by itself."""
    for are_topics, found in groupby(actions, lambda action: isinstance(action, TOPICS)):
        if are_topics:
            yield list(found)
        else:
            yield from ([action] for action in found)


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
    for action in plan.actions:
        try:
            match action:
                case act.DropFinalizer(kind, name):
                    await writes.hold(namespace, kind, name, FINALIZER, is_held=False)
                case act.UnguardClaim(name, uid, keeps_volume):
                    await writes.unguard(namespace, name, uid, keeps_volume=keeps_volume)
                case _:
                    assert_never(action)
        except StratalogError as error:
            failed.append(error)
    for (kind, name), status in plan.statuses.items():
        try:
            await writes.tell(namespace, kind, name, status)
        except StratalogError as error:
            failed.append(error)
    return failed
