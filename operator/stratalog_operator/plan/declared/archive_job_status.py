"""The status of an ArchiveJob: what its last run did, by the report that the pod left, and when the next one is due.

Pure. Source: docs/operator.md section 9.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.model.job_report import JobReport, bounded_words, decode_report
from stratalog_operator.plan.declared.archive_jobs import ArchiveJobPlan
from stratalog_operator.plan.observed import Observed, SeenArchiveJob, SeenReport, SeenRun
from stratalog_operator.plan.scope import Word, complete, is_paused
from stratalog_operator.resources.archive_job import ArchiveJobStatus, RunStatus
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge

_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
FAILURES: Final = 3
"""In a row: then a person is needed."""


def archive_job_status(seen: Observed, one: SeenArchiveJob, planned: ArchiveJobPlan) -> ArchiveJobStatus:
    status = one.status
    for run in planned.ended:
        status = _with_run(status, run, seen.reports.get(run.uid))
    status = status.model_copy(
        update={
            "observed_generation": one.generation,
            "active_runs": planned.active,
            "next_run_at": _next_run(seen, one, planned),
            "request": one.status.request if is_paused(seen) else planned.request,
        }
    )
    words = complete("ArchiveJob", _words(seen, one, planned, status))
    return status.model_copy(update={"conditions": merge(one.status.conditions, words, one.generation, seen.now)})


def _with_run(before: ArchiveJobStatus, run: SeenRun, left: SeenReport | None) -> ArchiveJobStatus:
    """Kubernetes says whether the run succeeded; the report, what it did."""
    report, why = _read(left)
    is_success = run.result == "Succeeded"
    message = "" if is_success else bounded_words(_why_failed(run, left, report, why))
    last = RunStatus(
        job=run.name,
        uid=run.uid,
        started_at=run.started_at or None,
        finished_at=run.finished_at,
        result="Succeeded" if is_success else "Failed",
        message=message or ("" if report is not None else bounded_words(why)),
    )
    given: dict[str, object] = {
        "last_run": last,
        "failures_in_a_row": 0 if is_success else before.failures_in_a_row + 1,
    }
    if is_success:
        given["last_success_at"] = run.finished_at
    if report is not None:
        numbers = {name: getattr(report, name) for name in ("exit_code", "segments", "rows", "bytes", "findings")}
        given["last_run"] = last.model_copy(update=numbers)
        if report.is_committed:
            given["last_commit_at"] = run.finished_at
        if report.lag_records is not None and is_success:
            given["lag_records"] = report.lag_records
    return before.model_copy(update=given)


def _read(left: SeenReport | None) -> tuple[JobReport | None, str]:
    """The report, or why there is none."""
    if left is None:
        return None, "its pod is gone, and with it the report"
    if not left.text:
        return None, "its pod left no report"
    try:
        return decode_report(left.text), ""
    except InvalidRequest as error:
        return None, str(error)


def _why_failed(run: SeenRun, left: SeenReport | None, report: JobReport | None, why: str) -> str:
    if run.reason == "DeadlineExceeded":
        return f"it took longer than deadlineSeconds, and was ended: {run.message}"
    if report is not None and report.message:
        return report.message
    ended = f"its container ended with {left.reason}" if left is not None and left.reason else ""
    return "; ".join(part for part in (ended, why, ": ".join(filter(None, (run.reason, run.message)))) if part)


def _next_run(seen: Observed, one: SeenArchiveJob, planned: ArchiveJobPlan) -> str | None:
    zone = UTC if one.spec.time_zone is None else seen.zones.get(one.spec.time_zone)
    if planned.schedule is None or zone is None or one.spec.suspend or one.is_deleting:
        return None
    due = planned.schedule.next_after(datetime.fromisoformat(seen.now), zone)
    return None if due is None else due.strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(
    seen: Observed, one: SeenArchiveJob, planned: ArchiveJobPlan, status: ArchiveJobStatus
) -> dict[ConditionType, Word]:
    last = status.last_run
    ready: Word = (_UNKNOWN, "NotRunYet", "no run has ended yet")
    if last is not None and last.result == "Succeeded":
        ready = (_YES, "LastRunSucceeded", last.message)
    elif last is not None:
        ready = (_NO, "LastRunFailed", f"{last.message}; its Job is {last.job}")
    words: dict[ConditionType, Word] = {
        ConditionType.READY: ready,
        ConditionType.RECONCILED: (_YES, "Applied", ""),
        ConditionType.PROGRESSING: (_YES, "Runs", "") if planned.active else (_NO, "NothingUnderWay", ""),
        ConditionType.STALLED: (_NO, "GoesOn", ""),
    }
    if status.failures_in_a_row >= FAILURES and last is not None:
        why = f"{status.failures_in_a_row:,} runs in a row have failed; the last one: {last.message}"
        words[ConditionType.STALLED] = (_YES, "FailsEachTime", why)
    if one.is_deleting:
        words[ConditionType.RECONCILED] = (_NO, "Deleting", "its runs end; what they wrote stays")
    elif is_paused(seen):
        words[ConditionType.RECONCILED] = (_NO, "Paused", "nothing is applied until it is resumed")
    elif planned.invalid:
        words[ConditionType.RECONCILED] = (_NO, "InvalidSpec", planned.invalid)
    elif planned.waits:
        words[ConditionType.RECONCILED] = (_NO, "Waiting", planned.waits)
    return words
