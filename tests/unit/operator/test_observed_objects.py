"""What the plan observes of pods and claims, parsed from Kubernetes' objects."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog_operator.observe import parse

NOW = "2013-01-01T00:10:00Z"
LABELS = {"stratalog.dev/cluster": "main", "stratalog.dev/pool": "hot", "stratalog.dev/node-id": "7"}


def _pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    named = {"name": "main-hot-1-0", "uid": "u", "creationTimestamp": "2013-01-01T00:00:00Z", **metadata}
    return {"metadata": named, "spec": {"nodeName": "machine-1"}, "status": status}


def _condition(type_: str, status: str, reason: str = "") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": "2013-01-01T00:09:00Z"}


def _waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


@pytest.mark.parametrize(
    ("status", "is_ready", "is_failing"),
    [
        ({"conditions": [_condition("Ready", "True")]}, True, False),
        ({"conditions": [_condition("Ready", "False")]}, False, False),
        ({}, False, False),
        ({"phase": "Failed"}, False, True),
        (_waiting("ContainerCreating"), False, False),
        (_waiting("CrashLoopBackOff"), False, True),
        (_waiting("ImagePullBackOff"), False, True),
        ({"conditions": [_condition("PodScheduled", "False", "Unschedulable")]}, False, True),
        ({"conditions": [_condition("PodScheduled", "False", "SchedulingGated")]}, False, False),
    ],
)
def test_a_pod_serves_or_waits_or_has_nothing_to_lose(status: dict[str, Any], is_ready: bool, is_failing: bool) -> None:
    found = parse.pod(_pod(status), NOW)

    assert (found.is_ready, found.is_failing) == (is_ready, is_failing)


def test_a_pod_that_finds_no_machine_for_a_moment_may_wait_for_its_volume() -> None:
    """Which is made once it is known where the pod goes: until then the scheduler says the same as for good."""
    just_now = {**_condition("PodScheduled", "False", "Unschedulable"), "lastTransitionTime": "2013-01-01T00:09:58Z"}

    assert not parse.pod(_pod({"conditions": [just_now]}), NOW).is_failing


def test_a_pod_that_is_being_stopped_does_not_serve_any_more() -> None:
    leaving = _pod({"conditions": [_condition("Ready", "True")]}, deletionTimestamp=NOW)

    found = parse.pod(leaving, NOW)
    assert found.is_leaving and not found.is_ready


def test_how_long_a_pod_has_not_served_counts_from_its_last_word_or_its_making() -> None:
    told = parse.pod(_pod({"conditions": [_condition("Ready", "False")]}), NOW)
    silent = parse.pod(_pod({}), NOW)

    assert (told.not_ready_seconds, silent.not_ready_seconds) == (60, 600)


def test_a_claim_is_guarded_only_with_its_volume_kept() -> None:
    """The finalizer alone would hold the claim, and not the volume."""

    def guarded(finalizers: list[str], notes: dict[str, str]) -> tuple[bool, str]:
        named = {"name": "data-main-hot-7", "uid": "u", "labels": LABELS}
        metadata = {**named, "finalizers": finalizers, "annotations": {**notes, "stratalog.dev/wanted-hash": "1"}}
        found = parse.claim({"metadata": metadata, "status": {"phase": "Bound"}})
        assert found is not None
        return found.is_guarded, found.half_guard

    held, kept = ["stratalog.dev/last-copy"], {"stratalog.dev/volume-policy": "Delete"}
    assert [guarded(held, kept), guarded(held, {}), guarded([], kept), guarded([], {})] == [
        (True, ""),
        (False, "finalizer"),
        (False, "volume"),
        (False, ""),
    ]


def test_a_claim_of_etcd_is_no_storage_nodes() -> None:
    metadata = {"name": "data-main-etcd-0", "uid": "u", "labels": {"stratalog.dev/part": "etcd"}}

    assert parse.claim({"metadata": metadata}) is None


@pytest.mark.fault("copy-claim-statefulset-storage")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("backup-of-data-main-hot-7", "7"),
        ("data-main-hot-7-copy", "7"),
        ("data-main-hot-8", "7"),
        ("data-main-hot-07", "07"),
        ("data-main-hot-x", "x"),
        ("data-main-hot-", ""),
        ("data-main-hot-100000", "100000"),
        ("data-main-hot-99999999999999999999", "99999999999999999999"),
    ],
)
def test_a_claim_or_set_whose_labels_and_name_do_not_agree_is_no_nodes(name: str, number: str) -> None:
    """A copy that a backup made keeps labels and notes: the volume of a retired disk is found by them, and deleted."""
    labels = {**LABELS, "stratalog.dev/node-id": number, "stratalog.dev/part": "node"}
    metadata = {"name": name, "uid": "u", "labels": labels}

    assert parse.claim({"metadata": metadata, "status": {}}) is None
    found = parse.stateful_set({"metadata": {**metadata, "name": name.removeprefix("data-")}, "spec": {}})
    assert (found.pool, found.node_id) == ("", None)


def test_claims_of_etcd_have_the_name_that_its_stateful_set_gives_them() -> None:
    labels = {"stratalog.dev/cluster": "main", "stratalog.dev/part": "etcd"}

    def number(name: str) -> int | None:
        found = parse.etcd_claim({"metadata": {"name": name, "uid": "u", "labels": labels}, "status": {}})
        return None if found is None else found.node_id

    assert [number(f"data-main-etcd-{word}") for word in ("0", "12", "x", "")] == [0, 12, None, None]
    assert [number(name) for name in ("backup-1", "data-other-etcd-1", "data-main-etcd-1-copy")] == [None] * 3


@pytest.mark.fault("claim-labels-alone")
def test_labels_alone_make_no_claim_a_nodes() -> None:
    """A claim `data-main-hot-99999` that anyone made took the last id: no node could be made any more, for good."""

    def parsed(**more: object) -> bool:
        labels = {**LABELS, "stratalog.dev/node-id": "99999"}
        metadata = {"name": "data-main-hot-99999", "uid": "u", "labels": labels, **more}
        return parse.claim({"metadata": metadata, "status": {}}) is not None

    assert not parsed() and not parsed(annotations={"theirs": "yes"})
    notes = [f"stratalog.dev/{word}" for word in ("wanted-hash", "storage-id", "volume-policy")]
    assert all(parsed(annotations={note: "1"}) for note in notes)
    assert parsed(finalizers=["stratalog.dev/last-copy"])
