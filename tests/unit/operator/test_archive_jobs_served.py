"""ArchiveJobs in a real API server, by a whole operator with only its own rights. The test is Kubernetes' controller of
Jobs and its kubelet: it ends Jobs, and writes what their pods leave."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stratalog.model.job_report import JobReport, encode_report
from stratalog_operator.kube.client import path_of
from stratalog_operator.resources.kinds import ARCHIVE_JOB, CLUSTER, POOL
from support.api_server import MERGE, NO_API_SERVER, ApiServer, apiserver_binary
from support.kind_samples import ABSENT
from support.operator_place import Place, operator_place

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _started(place: Place) -> dict[str, Any]:
    """A Job of the schedule, as Kubernetes makes it of the CronJob."""
    cron = place.get("CronJob", "nightly")
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": cron["metadata"]["uid"]}
    template = cron["spec"]["jobTemplate"]
    metadata = {**template["metadata"], "name": "nightly-1", "ownerReferences": [{**owner, "controller": True}]}
    made = place.api.ask("POST", path_of("Job", place.namespace), {"metadata": metadata, "spec": template["spec"]})
    assert made.is_ok, made.message
    return made.body


def _ended(place: Place, job: dict[str, Any], report: str, *, failed: str = "") -> None:
    """The pod is there before the Job ends, as in Kubernetes."""
    name, now = job["metadata"]["name"], _now()
    template = job["spec"]["template"]
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}
    body = {"metadata": {"name": f"{name}-abcde", "labels": labels}, "spec": template["spec"]}
    made = place.api.ask("POST", path_of("Pod", place.namespace), body)
    assert made.is_ok, made.message
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now, "message": report}}
    container = {"name": "job", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    _patch(place, "Pod", f"{name}-abcde", {"phase": "Succeeded", "containerStatuses": [container]})
    kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
    conditions = [{"type": kind, "status": "True", "reason": failed, "lastTransitionTime": now} for kind in kinds]
    status: dict[str, Any] = {"startTime": now, "conditions": conditions}
    _patch(place, "Job", name, status if failed else {**status, "completionTime": now, "succeeded": 1})


def _patch(place: Place, kind: str, name: str, status: dict[str, Any]) -> None:
    path = f"{path_of(kind, place.namespace, name)}/status"
    answer = place.api.ask("PATCH", path, {"status": status}, kind=MERGE)
    assert answer.is_ok, answer.message


def _status(place: Place, name: str = "nightly") -> dict[str, Any]:
    found: dict[str, Any] = place.get("ArchiveJob", name).get("status", {})
    return found


def _message(place: Place, name: str, kind: str) -> str:
    found = _status(place, name).get("conditions") or []
    return next((str(one["message"]) for one in found if one["type"] == kind), "")


@pytest.mark.fault("archive-run-fails")
@pytest.mark.fault("archive-run-requested")
async def test_runs_are_made_read_and_reported_and_go_with_their_object(api: ApiServer) -> None:
    async with operator_place(api, "archived") as place, place.operator() as operator:
        place.make(CLUSTER)
        place.make(POOL, {"spec.zones": [], "spec.replicas": 1})
        place.make(ARCHIVE_JOB)
        place.make(ARCHIVE_JOB, {"metadata.name": "wrong", "spec.schedule": "0 25 * * *"})
        place.make(ARCHIVE_JOB, {"metadata.name": "nowhere", "spec.timeZone": "Nowhere/Town"})
        place.make(ARCHIVE_JOB, {"metadata.name": "x" * 63, "spec.schedule": ABSENT})
        await place.until(lambda: "nightly" in place.names("CronJob") and "nextRunAt" in _status(place))
        await place.until(lambda: place.condition("Stalled", "ArchiveJob", "nowhere") == "True")
        await place.until(lambda: "hour: '25'" in _message(place, "wrong", "Reconciled"))
        assert place.names("CronJob") == ["nightly"], "the server refuses the zone, the operator the hour"

        report = JobReport("archive", 0, 1, 2, segments=2, rows=7, bytes=900, lag_records=3, is_committed=True)
        _ended(place, _started(place), encode_report(report))
        await place.until(lambda: _status(place).get("lastRun", {}).get("rows") == 7)
        found = _status(place)
        assert (found["lagRecords"], found["lastCommitAt"]) == (3, found["lastRun"]["finishedAt"])
        assert place.condition("Ready", "ArchiveJob", "nightly") == "True"

        place.change("ArchiveJob", "x" * 63, {"spec": {"runRequestedAt": _now()}})
        await place.until(lambda: len(place.names("Job")) == 2)
        (asked,) = [one for one in place.all("Job") if one["metadata"]["name"] != "nightly-1"]
        _ended(place, asked, "Killed", failed="BackoffLimitExceeded")
        await place.until(lambda: "doneAt" in _status(place, "x" * 63).get("request", {}))
        await place.until(lambda: "not JSON" in _message(place, "x" * 63, "Ready"))

        assert operator.kubernetes is not None
        refused = [key for key in operator.kubernetes.answers if key[1] in ("401", "403")]
        place.delete("ArchiveJob", "nightly")
        await place.until(lambda: place.names("CronJob") == [])
    assert refused == []
