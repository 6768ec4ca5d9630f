"""Performs the actions of a pass in their order, then writes the statuses.

"Not found" is success for whatever takes something away; a UID that differs means that what was meant is gone already.
An action that fails keeps none of the additive ones from being done, and all that is disruptive: that is planned anew
from what is there then. Only fields that are ours are
written: by server-side apply, or (finalizers, notes, replicas) by a patch that holds only for the very state that was
read.

Lives in the operator's event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, assert_never, get_args

from stratalog.model.errors import Conflict, NotFound, StratalogError
from stratalog.model.retirement import RetireMode
from stratalog_operator.kube.client import APPLY, MERGE, Kubernetes, api_version, path_of
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.names import (
    ANNOTATION_CLUSTER_ID,
    ANNOTATION_STORAGE_ID,
    ANNOTATION_VOLUME_POLICY,
    FIELD_MANAGER,
    FINALIZER,
    FINALIZER_LAST_COPY,
    LABEL_RELEASED,
    STATUS_FIELD_MANAGER,
)
from stratalog_operator.resources.schema import Part
from stratalog_operator.specs.cluster import token_secret

_BY_OWNER: Final = {"propagationPolicy": "Background"}


DISRUPTIVE: Final = get_args(act.Disruptive)


class MetaDesk(Protocol):
    """Where wishes are stated to the meta service. Each may be repeated."""

    async def retire(self, node_id: int, mode: RetireMode, force_storage_id: str | None) -> None: ...

    async def cancel(self, node_id: int) -> None: ...

    async def end_mount(self, mount: str) -> None: ...


class Performer:
    def __init__(self, kubernetes: Kubernetes, meta: MetaDesk) -> None:
        self._kubernetes = kubernetes
        self._meta = meta

    async def perform(self, seen: Observed, plan: act.Plan) -> list[StratalogError]:
        """Returns what failed; the caller looks again, later each time."""
        failed: list[StratalogError] = []
        for action in plan.actions:
            if failed and isinstance(action, DISRUPTIVE):
                break
            try:
                await self.do(seen, action)
            except StratalogError as error:
                failed.append(error)
        for (kind, name), status in plan.statuses.items():
            try:
                await self.tell(seen.namespace, kind, name, status)
            except StratalogError as error:
                failed.append(error)
        return failed

    async def tell(self, namespace: str, kind: str, name: str, status: Part) -> None:
        body = _bare(kind, name) | {"status": status.model_dump(by_alias=True, exclude_none=True, mode="json")}
        with suppress(NotFound):
            await self._apply(f"{path_of(kind, namespace, name)}/status", body, STATUS_FIELD_MANAGER)

    async def do(self, seen: Observed, action: act.Action) -> None:
        namespace = seen.namespace
        match action:
            case act.Apply(manifest):
                await self._apply(path_of(*_named(action, namespace)), manifest, FIELD_MANAGER)
            case act.MakeToken():
                made = token_secret(cluster_of(seen), secrets.token_urlsafe(32))
                with suppress(Conflict):  # it is there
                    await self._kubernetes.ask("POST", path_of("Secret", namespace), made)
            case act.GuardClaim(name, uid):
                await self._guard(namespace, name, uid)
            case act.UnguardClaim(name, uid, keeps_volume):
                await self._unguard(namespace, name, uid, keeps_volume=keeps_volume)
            case act.ReleaseClaim(name, uid):
                await self._mark(namespace, name, uid, {"labels": {LABEL_RELEASED: "true"}})
            case act.NoteDisk(name, uid, storage_id, cluster_id):
                notes = {ANNOTATION_STORAGE_ID: storage_id, ANNOTATION_CLUSTER_ID: cluster_id}
                await self._mark(namespace, name, uid, {"annotations": notes})
            case act.AskRetire(node_id, mode, force_storage_id):
                await self._meta.retire(node_id, mode, force_storage_id)
            case act.CancelRetire(node_id):
                await self._meta.cancel(node_id)
            case act.EndMount(mount):
                await self._meta.end_mount(mount)
            case act.AddFinalizer(kind, name):
                await self._hold(namespace, kind, name, FINALIZER, is_held=True)
            case act.DropFinalizer(kind, name):
                await self._hold(namespace, kind, name, FINALIZER, is_held=False)
            case act.StopPod(name, uid):
                await self._delete("Pod", namespace, name, uid)
            case act.StopSet(name, uid):
                await self._stop(namespace, name, uid)
            case act.DeleteClaim(name, uid):
                await self._delete("PersistentVolumeClaim", namespace, name, uid)
            case act.DeleteObject(kind, name, uid):
                await self._delete(kind, namespace, name, uid)
            case _:
                assert_never(action)

    async def _apply(self, path: str, body: Mapping[str, Any], manager: str) -> None:
        """What is ours is ours: who else has set it has it no more."""
        query = {"fieldManager": manager, "force": "true"}
        await self._kubernetes.ask("PATCH", path, body, query=query, content_type=APPLY)

    async def _hold(
        self, namespace: str, kind: str, name: str, finalizer: str, *, is_held: bool, uid: str | None = None
    ) -> None:
        """Not by an apply: one that gives up our finalizer takes those along that no manager owns, such as the
        protection of a claim that is in use."""
        path = path_of(kind, namespace, name)
        try:
            there = (await self._kubernetes.ask("GET", path))["metadata"]
        except NotFound:
            return
        found = list(there.get("finalizers", []))
        if (uid is not None and there["uid"] != uid) or (finalizer in found) == is_held:
            return
        wanted = [*found, finalizer] if is_held else [one for one in found if one != finalizer]
        body = {"metadata": {"resourceVersion": there["resourceVersion"], "finalizers": wanted}}
        with suppress(NotFound):
            await self._kubernetes.ask("PATCH", path, body, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE)

    async def _guard(self, namespace: str, name: str, uid: str) -> None:
        """The volume first: whatever becomes of the claim from then on, the data stay."""
        volume, policy = await self._volume(namespace, name, uid)
        if volume is None:
            return
        await self._keep_volume(volume, "Retain")
        await self._mark(namespace, name, uid, {"annotations": {ANNOTATION_VOLUME_POLICY: policy}})
        await self._hold(namespace, "PersistentVolumeClaim", name, FINALIZER_LAST_COPY, is_held=True, uid=uid)

    async def _unguard(self, namespace: str, name: str, uid: str, *, keeps_volume: bool) -> None:
        """The volume first again: once the finalizer is gone nothing is left to look at."""
        if not keeps_volume:
            volume, policy = await self._volume(namespace, name, uid)
            if volume is not None:
                await self._keep_volume(volume, policy)
        await self._hold(namespace, "PersistentVolumeClaim", name, FINALIZER_LAST_COPY, is_held=False, uid=uid)

    async def _volume(self, namespace: str, name: str, uid: str) -> tuple[str | None, str]:
        """Of a claim: its volume, and the policy that this had before we changed it."""
        try:
            claim = await self._kubernetes.ask("GET", path_of("PersistentVolumeClaim", namespace, name))
            volume = claim["spec"].get("volumeName")
            if claim["metadata"]["uid"] != uid or not volume:
                return None, ""
            found = await self._kubernetes.ask("GET", path_of("PersistentVolume", "", volume))
        except NotFound:
            return None, ""
        noted = claim["metadata"].get("annotations", {}).get(ANNOTATION_VOLUME_POLICY)
        return str(volume), str(noted or found["spec"]["persistentVolumeReclaimPolicy"])

    async def _keep_volume(self, volume: str, policy: str) -> None:
        body = {"spec": {"persistentVolumeReclaimPolicy": policy}}
        query = {"fieldManager": FIELD_MANAGER}
        path = path_of("PersistentVolume", "", volume)
        await self._kubernetes.ask("PATCH", path, body, query=query, content_type=MERGE)

    async def _mark(self, namespace: str, name: str, uid: str, words: Mapping[str, Mapping[str, str]]) -> None:
        """Labels and notes on a claim, beside those that are there."""
        path = path_of("PersistentVolumeClaim", namespace, name)
        await self._merge(path, uid, {"metadata": words})

    async def _stop(self, namespace: str, name: str, uid: str) -> None:
        await self._merge(path_of("StatefulSet", namespace, name), uid, {"spec": {"replicas": 0}})

    async def _merge(self, path: str, uid: str, body: Mapping[str, Any]) -> None:
        """Of the object that was meant, in the state in which it was seen to be that one."""
        try:
            there = await self._kubernetes.ask("GET", path)
        except NotFound:
            return
        if there["metadata"]["uid"] != uid:
            return
        stamp = {"resourceVersion": there["metadata"]["resourceVersion"]}
        whole = {**body, "metadata": {**body.get("metadata", {}), **stamp}}
        with suppress(NotFound):
            await self._kubernetes.ask("PATCH", path, whole, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE)

    async def _delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, **_BY_OWNER}
        with suppress(NotFound, Conflict):  # a conflict: another one has its name by now
            await self._kubernetes.ask("DELETE", path_of(kind, namespace, name), body)


def _bare(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version(kind), "kind": kind, "metadata": {"name": name}}


def _named(action: act.Apply, namespace: str) -> tuple[str, str, str]:
    kind, name = action.key
    return kind, namespace, name
