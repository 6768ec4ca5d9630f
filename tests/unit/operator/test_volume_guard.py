"""The guard of a claim: what is written to its volume, and what is concluded from a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stratalog_operator.apply.writes import POLICY_NOT_OURS, Writes
from stratalog_operator.kube.client import Forbidden, path_of
from stratalog_operator.resources.names import ANNOTATION_VOLUME_POLICY, FINALIZER_LAST_COPY
from support.noted_kubernetes import NotedKubernetes

CLAIM = path_of("PersistentVolumeClaim", "data", "data-main-hot-1")
VOLUME = path_of("PersistentVolume", "", "v")


class Volumes(NotedKubernetes):
    """A claim and its volume; `forbids` are methods that are refused for the volume."""

    def __init__(self, *forbids: str, claim_of: str = "u") -> None:
        super().__init__()
        metadata = {"uid": "u", "resourceVersion": "1", "finalizers": []}
        spec = {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"uid": claim_of}}
        self.answers_to = {
            CLAIM: {"metadata": metadata, "spec": {"volumeName": "v"}},
            VOLUME: {"metadata": metadata, "spec": spec},
        }
        self.bodies: list[Mapping[str, Any]] = []
        self._forbids = forbids

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        if path == VOLUME and method in self._forbids:
            raise Forbidden(f"{method} {path}: 403: refused")
        if body is not None:
            self.bodies.append(body)
        return await super().ask(method, path, body, **more)


@pytest.mark.fault("volume-change-refused")
async def test_a_webhook_that_refuses_the_policy_of_a_volume_says_nothing_about_rights() -> None:
    """The claim was noted as one whose volume the operator has no right to, for good, and counted as guarded."""
    kubernetes = Volumes("PATCH")
    with pytest.raises(Forbidden):
        await Writes(kubernetes).guard("data", "data-main-hot-1", "u")
    assert kubernetes.changed() == []


@pytest.mark.fault("claim-last-copy-deleted")
async def test_without_the_right_to_volumes_the_note_on_the_claim_says_so() -> None:
    kubernetes = Volumes("GET", "PATCH")
    await Writes(kubernetes).guard("data", "data-main-hot-1", "u")

    assert kubernetes.changed() == [CLAIM, CLAIM]
    assert kubernetes.bodies[0]["metadata"]["annotations"] == {ANNOTATION_VOLUME_POLICY: POLICY_NOT_OURS}


@pytest.mark.fault("volume-of-another-claim")
async def test_the_policy_of_a_volume_that_belongs_to_another_claim_is_left_alone() -> None:
    """A volume was made again under the name, for a claim of another namespace."""
    kubernetes = Volumes(claim_of="another")
    await Writes(kubernetes).guard("data", "data-main-hot-1", "u")
    await Writes(kubernetes).unguard("data", "data-main-hot-1", "u", keeps_volume=False)

    assert kubernetes.changed() == []


@pytest.mark.fault("status-of-namesake")
@pytest.mark.parametrize(("uid", "written"), [("u", 1), ("of the namesake", 0)])
async def test_conditions_are_written_to_the_object_that_was_read_and_not_to_its_namesake(
    uid: str, written: int
) -> None:
    kubernetes = NotedKubernetes()
    path = path_of("StorageCluster", "data", "main")
    kubernetes.answers_to = {path: {"metadata": {"uid": "u", "resourceVersion": "7"}}}
    await Writes(kubernetes).write_conditions("data", "StorageCluster", "main", uid, [])
    assert kubernetes.changed() == [f"{path}/status"] * written


@pytest.mark.fault("volume-policy-note-garbage")
@pytest.mark.parametrize(("note", "changed"), [("Delete", [VOLUME]), ("delete!", []), ("{}", [])])
async def test_a_note_of_a_policy_that_cannot_be_read_keeps_the_volume_and_releases_the_claim(
    note: str, changed: list[str]
) -> None:
    """Kubernetes refuses such a policy, so the claim was never released."""
    kubernetes = Volumes()
    metadata = kubernetes.answers_to[CLAIM]["metadata"]
    metadata |= {"annotations": {ANNOTATION_VOLUME_POLICY: note}, "finalizers": [FINALIZER_LAST_COPY]}
    await Writes(kubernetes).unguard("data", "data-main-hot-1", "u", keeps_volume=False)
    assert kubernetes.changed() == [*changed, CLAIM]
