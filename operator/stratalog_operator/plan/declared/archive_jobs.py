"""Has Kubernetes run what an ArchiveJob asks for: a CronJob for its schedule, and a Job for each request.

Kubernetes itself starts the runs of a schedule, makes up for missed ones and ends those that take too long: whatever
becomes of the operator, they continue. The name of a request's Job follows from its time, so it is made once.

An ended run is read once: the status has its Job, and all that ended later is news. Its report comes from its pod,
which may be gone, or say anything.

Pure. Source: docs/operator.md section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stratalog.model.counting import counted
from stratalog_operator.plan.actions import Apply, DeleteObject, Offer
from stratalog_operator.plan.cron import Schedule, parse_schedule
from stratalog_operator.plan.observed import Observed, SeenArchiveJob, SeenRun
from stratalog_operator.plan.requests import Request, judge
from stratalog_operator.plan.scope import apply_missing, cluster_id, cluster_of
from stratalog_operator.resources.archive_job import RunRequest
from stratalog_operator.specs.archive_job import (
    cron_job,
    cron_job_name,
    requested_job,
    requested_job_name,
    why_impossible,
)

ARCHIVE_JOB: Final = "ArchiveJob"


@dataclass(frozen=True, slots=True)
class ArchiveJobPlan:
    """What is so about one object."""

    offer: Offer = field(default_factory=Offer)
    invalid: str = ""
    """Why what is asked for cannot be, in words."""
    waits: str = ""
    """What is waited for before it can be done."""
    schedule: Schedule | None = None
    """None: it has none, or one that cannot be read."""
    request: RunRequest | None = None
    """The newest."""
    ended: tuple[SeenRun, ...] = ()
    """Runs that ended since the last pass, in their order. Without those that were not read yet."""
    active: int = 0
    has_unread: bool = False
    """Some reports are read in a later pass."""


def plan_archive_job(seen: Observed, one: SeenArchiveJob) -> ArchiveJobPlan:
    runs = seen.runs.get(one.name, ())
    active = sum(not run.result for run in runs)
    ended, has_unread = _ended(seen, one, runs)
    before = one.status.request
    if one.is_deleting:
        return ArchiveJobPlan(request=before, ended=ended, active=active)
    cluster, known = cluster_of(seen), cluster_id(seen)
    invalid = why_impossible(cluster, one.spec)
    schedule: Schedule | None = None
    try:
        schedule = None if one.spec.schedule is None else parse_schedule(one.spec.schedule)
    except ValueError as error:
        invalid = invalid or f"schedule: {error}"
    offer = Offer()
    if one.spec.schedule is None:
        offer.add(_without_schedule(seen, one))
    if invalid or not known:
        waits = "" if invalid else "the meta service has not said yet which cluster this is"
        return ArchiveJobPlan(offer, invalid, waits, None if invalid else schedule, before, ended, active, has_unread)
    if schedule is not None:
        manifest = cron_job(cluster, known, one.name, one.uid, one.spec)
        offer.add(apply_missing(seen, [manifest], "its schedule wants it"))
    try:
        request, waits = _request(seen, one, runs, active, offer, known)
    except ValueError:
        request, waits, invalid = before, "", f"runRequestedAt: {one.spec.run_requested_at} is not a time of a clock"
    return ArchiveJobPlan(offer, invalid, waits, schedule, request, ended, active, has_unread)


def _without_schedule(seen: Observed, one: SeenArchiveJob) -> Offer:
    key = ("CronJob", cron_job_name(one.name))
    uid = seen.uids.get(key)
    if uid is None or one.name not in seen.scheduled:
        return Offer()
    return Offer([DeleteObject(*key, uid, "its ArchiveJob has no schedule any more")])


def _request(
    seen: Observed, one: SeenArchiveJob, runs: tuple[SeenRun, ...], active: int, offer: Offer, known: str
) -> tuple[RunRequest | None, str]:
    """Raises: ValueError for a time that is none."""
    before = one.status.request
    is_over = before is not None and (before.ignored or before.done_at is not None)
    asked = None if before is None else before.requested_at
    request, at = judge(one.spec.run_requested_at, one.created, seen.now, known=asked, is_over=is_over)
    if request is Request.NOTHING:
        return before, ""
    if request is Request.TOO_OLD:
        return RunRequest(requested_at=at, ignored=True), ""
    name = requested_job_name(one.name, at)
    run = next((run for run in runs if run.name == name), None)
    if run is not None:
        return RunRequest(requested_at=at, job=name, done_at=run.finished_at or None), ""
    if before is not None and before.requested_at == at and before.job:
        # It was there, and a person deleted it: that ends the request.
        return before.model_copy(update={"done_at": seen.now}), ""
    if active and one.spec.concurrency_policy == "Forbid":
        return before, f"the requested run waits until {counted(active, 'run')} under way have ended"
    made = requested_job(cluster_of(seen), known, one.name, one.uid, one.spec, at)
    offer.actions.append(Apply(made, f"a run was requested at {at}"))
    return before, ""


# Ended runs -----------------------------------------------------------------------------------------------------------
def unread_runs(one: SeenArchiveJob, runs: tuple[SeenRun, ...]) -> list[SeenRun]:
    """Those that ended and are not in the status yet, the oldest first."""
    last = one.status.last_run
    since = ("", "") if last is None else (last.finished_at or "", last.uid)
    ended = [run for run in runs if run.result and (run.finished_at, run.uid) > since]
    return sorted(ended, key=lambda run: (run.finished_at, run.uid))


def _ended(seen: Observed, one: SeenArchiveJob, runs: tuple[SeenRun, ...]) -> tuple[tuple[SeenRun, ...], bool]:
    """Up to the first one whose report was not asked for in this pass."""
    unread = unread_runs(one, runs)
    count = next((number for number, run in enumerate(unread) if run.uid not in seen.reports), len(unread))
    return tuple(unread[:count]), count < len(unread)
