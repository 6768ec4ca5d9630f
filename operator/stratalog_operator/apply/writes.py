"""What is written to Kubernetes, request by request: each safe to repeat after its answer was lost.

Only fields that are ours are written: by server-side apply, or (finalizers, notes, replicas) by a patch that holds only
for the very state that was read. "Not found" is success for whatever takes something away; a UID that differs means
that what was meant is gone already.

Lives in the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog.telemetry.logs import logger
from stratalog_operator.kube.client import APPLY, MERGE, Forbidden, Kubernetes, api_version, path_of
from stratalog_operator.plan.belonging import why_of_others
from stratalog_operator.resources.conditions import Conditions
from stratalog_operator.resources.names import (
    ANNOTATION_VOLUME_POLICY,
    FIELD_MANAGER,
    FINALIZER_LAST_COPY,
    STATUS_FIELD_MANAGER,
)
from stratalog_operator.resources.schema import Part

log = logger(__name__)

POLICY_NOT_OURS: Final = "not-ours"
"""In the note on a claim, where the operator has no right to its volume."""
_POLICIES: Final = ("Retain", "Delete", "Recycle")
_BY_OWNER: Final = {"propagationPolicy": "Background"}


class Writes:
    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    async def write_status(self, namespace: str, kind: str, name: str, status: Part, uid: str) -> None:
        """Of this very object: one that was made again under the name is another, and would take over what the status
        says that the first had. Raises: Conflict."""
        path = path_of(kind, namespace, name)
        try:
            there = await self._kubernetes.ask("GET", path)
        except NotFound:
            return
        if there["metadata"]["uid"] != uid:
            raise Conflict(f"{kind} {name} was deleted and made again since it was read")
        body = _bare(kind, name) | {"status": status.model_dump(by_alias=True, exclude_none=True, mode="json")}
        with suppress(NotFound):
            await self.apply(f"{path}/status", body, STATUS_FIELD_MANAGER)

    async def write_conditions(self, namespace: str, kind: str, name: str, uid: str, conditions: Conditions) -> None:
        """All conditions of this very object, and nothing else of its status: another version has written fields there
        that this one does not know."""
        listed = [one.model_dump(by_alias=True, exclude_none=True, mode="json") for one in conditions]
        path, body = path_of(kind, namespace, name), {"status": {"conditions": listed}}
        await self._merge(path, uid, body, part="/status", manager=STATUS_FIELD_MANAGER)

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> None:
        """Raises: Conflict when one of that name is there."""
        await self._kubernetes.ask("POST", path_of(kind, namespace), body)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> None:
        """What is ours is ours: who else has set it has it no more."""
        query = {"fieldManager": manager, "force": "true"}
        await self._kubernetes.ask("PATCH", path, body, query=query, content_type=APPLY)

    async def require_own(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        """Raises: InvalidRequest when an object of that name is there that does not belong to the cluster."""
        named = {"fieldSelector": f"metadata.name={manifest['metadata']['name']}"}
        # By the right to list, which is there for all kinds.
        found = await self._kubernetes.ask("GET", path_of(manifest["kind"], namespace), query=named)
        for there in found["items"]:
            if why := why_of_others(manifest, there):
                raise InvalidRequest(why)

    async def hold(
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
        if is_held and "deletionTimestamp" in there:
            return  # Kubernetes gives no finalizer to what is being deleted
        wanted = [*found, finalizer] if is_held else [one for one in found if one != finalizer]
        body = {"metadata": {"resourceVersion": there["resourceVersion"], "finalizers": wanted}}
        with suppress(NotFound):
            await self._kubernetes.ask("PATCH", path, body, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE)

    async def guard(self, namespace: str, name: str, uid: str) -> None:
        """The volume first: whatever becomes of the claim from then on, the data stay."""
        try:
            volume, policy = await self._volume(namespace, name, uid)
        except Forbidden:
            # An operator of one namespace may have no say in volumes: then the finalizer alone guards, and the note
            # says that the policy is not ours to give back. The note is permanent, so a change that a webhook refuses
            # does not lead to it: that is tried again.
            volume, policy = None, POLICY_NOT_OURS
        if volume is None and not policy:
            return
        if volume is not None:
            await self._keep_volume(volume, "Retain")
        await self.mark(namespace, name, uid, {"annotations": {ANNOTATION_VOLUME_POLICY: policy}})
        await self.hold(namespace, "PersistentVolumeClaim", name, FINALIZER_LAST_COPY, is_held=True, uid=uid)

    async def unguard(self, namespace: str, name: str, uid: str, *, keeps_volume: bool) -> None:
        """The volume first again: once the finalizer is gone, nothing shows what remains to be done."""
        if not keeps_volume:
            volume, policy = await self._volume(namespace, name, uid)
            if volume is not None and policy in _POLICIES:
                await self._keep_volume(volume, policy)
            elif volume is not None:
                log.warning(
                    "a claim's note of its volume's policy cannot be read: the volume is kept",
                    claim=f"{namespace}/{name}",
                    volume=volume,
                    note=policy,
                )
        await self.hold(namespace, "PersistentVolumeClaim", name, FINALIZER_LAST_COPY, is_held=False, uid=uid)

    async def _volume(self, namespace: str, name: str, uid: str) -> tuple[str | None, str]:
        """Of a claim: its volume, and the policy that this had before we changed it."""
        try:
            claim = await self._kubernetes.ask("GET", path_of("PersistentVolumeClaim", namespace, name))
            volume = claim["spec"].get("volumeName")
            noted = claim["metadata"].get("annotations", {}).get(ANNOTATION_VOLUME_POLICY)
            if claim["metadata"]["uid"] != uid or not volume or noted == POLICY_NOT_OURS:
                return None, ""
            found = await self._kubernetes.ask("GET", path_of("PersistentVolume", "", volume))
        except NotFound:
            return None, ""
        if (found["spec"].get("claimRef") or {}).get("uid", uid) != uid:
            return None, ""  # a volume of that name belongs to another claim
        return str(volume), str(noted or found["spec"]["persistentVolumeReclaimPolicy"])

    async def _keep_volume(self, volume: str, policy: str) -> None:
        body = {"spec": {"persistentVolumeReclaimPolicy": policy}}
        query = {"fieldManager": FIELD_MANAGER}
        path = path_of("PersistentVolume", "", volume)
        await self._kubernetes.ask("PATCH", path, body, query=query, content_type=MERGE)

    async def mark(self, namespace: str, name: str, uid: str, words: Mapping[str, Mapping[str, str]]) -> None:
        """Labels and notes on a claim, beside those that are there."""
        path = path_of("PersistentVolumeClaim", namespace, name)
        await self._merge(path, uid, {"metadata": words})

    async def note(self, namespace: str, kind: str, name: str, uid: str, notes: Mapping[str, str | None]) -> None:
        """Adds annotations to one of the operator's objects; the value None removes one."""
        await self._merge(path_of(kind, namespace, name), uid, {"metadata": {"annotations": dict(notes)}})

    async def stop(self, namespace: str, name: str, uid: str) -> None:
        await self._merge(path_of("StatefulSet", namespace, name), uid, {"spec": {"replicas": 0}})

    async def _merge(
        self, path: str, uid: str, body: Mapping[str, Any], *, part: str = "", manager: str = FIELD_MANAGER
    ) -> None:
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
            query = {"fieldManager": manager}
            await self._kubernetes.ask("PATCH", f"{path}{part}", whole, query=query, content_type=MERGE)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, **_BY_OWNER}
        with suppress(NotFound, Conflict):  # a conflict: another one has its name by now
            await self._kubernetes.ask("DELETE", path_of(kind, namespace, name), body)


def _bare(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version(kind), "kind": kind, "metadata": {"name": name}}
