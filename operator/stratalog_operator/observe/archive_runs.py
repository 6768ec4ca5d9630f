"""Reads what Kubernetes runs for the ArchiveJobs of a cluster: CronJobs, Jobs, and the reports of those that have
ended.

A report is the termination message of a pod. It is read once, when its Job has ended: pods of jobs are in no other
list, for there may be thousands. Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.together import together
from stratalog_operator.observe import parse
from stratalog_operator.plan.declared.archive_jobs import unread_runs
from stratalog_operator.plan.observed import SeenArchiveJob, SeenReport, SeenRun
from stratalog_operator.plan.ownership import Fields
from stratalog_operator.resources.names import ANNOTATION_WANTED_HASH, LABEL_ARCHIVE_JOB, LABEL_CLUSTER, LABEL_PART

MOST_REPORTS: Final = 50
"""Read in a pass; the others have their turn in the next ones."""
_AT_ONCE: Final = 8
_OF_JOB: Final = "batch.kubernetes.io/controller-uid"
"""The label by which Kubernetes finds the pods of a Job."""


@dataclass(frozen=True, slots=True)
class ArchiveRuns:
    hashes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    fields: Mapping[tuple[str, str], Fields] = field(default_factory=dict)
    uids: Mapping[tuple[str, str], str] = field(default_factory=dict)
    scheduled: frozenset[str] = frozenset()
    runs: Mapping[str, tuple[SeenRun, ...]] = field(default_factory=dict)
    reports: Mapping[str, SeenReport | None] = field(default_factory=dict)
    zones: Mapping[str, tzinfo] = field(default_factory=dict)


async def read_runs(
    kubernetes: Kubernetes, namespace: str, cluster: str, archive_jobs: Iterable[SeenArchiveJob]
) -> ArchiveRuns:
    """Cost: two lists, and one for each report. Raises: Unavailable when a list could not be read."""
    wanted = tuple(archive_jobs)
    if not wanted:
        return ArchiveRuns()
    labels = f"{LABEL_CLUSTER}={cluster},{LABEL_PART}=job"
    async with together() as asked:
        listed = [asked.create_task(_all(kubernetes, kind, namespace, labels)) for kind in ("CronJob", "Job")]
    cron_jobs, jobs = (task.result() for task in listed)
    runs: dict[str, list[SeenRun]] = {}
    for found in jobs:
        owner = str((found["metadata"].get("labels") or {}).get(LABEL_ARCHIVE_JOB) or "")
        runs.setdefault(owner, []).append(parse.run(found))
    by_name = {name: tuple(some) for name, some in runs.items()}
    return ArchiveRuns(
        parse.hashes("CronJob", cron_jobs),
        parse.fields("CronJob", cron_jobs),
        {("CronJob", one["metadata"]["name"]): one["metadata"]["uid"] for one in cron_jobs},
        frozenset(_owner(one) for one in cron_jobs),
        by_name,
        await _read_reports(kubernetes, namespace, wanted, by_name),
        _zones(wanted),
    )


async def cron_jobs_of(kubernetes: Kubernetes, namespace: str, cluster: str) -> list[tuple[str, str]]:
    """Name and UID of the CronJobs of a cluster that is not there."""
    found = await _all(kubernetes, "CronJob", namespace, f"{LABEL_CLUSTER}={cluster},{LABEL_PART}=job")
    return [(one["metadata"]["name"], one["metadata"]["uid"]) for one in found if _owner(one)]


def _owner(found: Mapping[str, Any]) -> str:
    """The ArchiveJob for which the operator made it; empty: another program did."""
    metadata = found["metadata"]
    is_made = ANNOTATION_WANTED_HASH in (metadata.get("annotations") or {})
    return str((metadata.get("labels") or {}).get(LABEL_ARCHIVE_JOB) or "") if is_made else ""


async def _read_reports(
    kubernetes: Kubernetes,
    namespace: str,
    archive_jobs: Iterable[SeenArchiveJob],
    runs: Mapping[str, tuple[SeenRun, ...]],
) -> dict[str, SeenReport | None]:
    """By the UID of the Job."""
    unread = [run.uid for one in archive_jobs for run in unread_runs(one, runs.get(one.name, ()))][:MOST_REPORTS]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def read(uid: str) -> SeenReport | None:
        async with slots:
            return parse.report(await _all(kubernetes, "Pod", namespace, f"{_OF_JOB}={uid}"))

    async with together() as asked:
        tasks = {uid: asked.create_task(read(uid)) for uid in unread}
    return {uid: task.result() for uid, task in tasks.items()}


async def _all(kubernetes: Kubernetes, kind: str, namespace: str, labels: str) -> list[dict[str, Any]]:
    answer = await kubernetes.ask("GET", path_of(kind, namespace), query={"labelSelector": labels})
    return list(answer["items"])


def _zones(archive_jobs: Iterable[SeenArchiveJob]) -> dict[str, tzinfo]:
    """By name; those that this machine does not know are left out. Whether they exist is for Kubernetes to say."""
    found: dict[str, tzinfo] = {}
    for name in {one.spec.time_zone for one in archive_jobs}:
        try:
            if name is not None:
                found[name] = ZoneInfo(name)
        except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            continue
    return found
