"""ArchiveJobs: what Kubernetes is to run for them, and what the status says of the runs that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stratalog.model.job_report import JobReport, encode_report
from stratalog_operator.apply.perform import apart
from stratalog_operator.observe import parse
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.failures import Failure, told_with
from stratalog_operator.plan.news import news
from stratalog_operator.plan.observed import Observed, Seen, SeenArchiveJob, SeenReport, SeenRun, Unread
from stratalog_operator.plan.orphans import orphans
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.archive_job import ArchiveJobSpec, ArchiveJobStatus
from stratalog_operator.specs.archive_job import cron_job_name, requested_job_name
from support.operator_world import world

CREATED, REQUESTED, ENDED = (f"2013-01-01T00:{minute:02}:00Z" for minute in (1, 2, 4))
ARCHIVE = {"clusterRef": "main", "action": "Archive", "topics": ["flights"], "archive": {"to": "s3://tables/main"}}
VERIFY = {"clusterRef": "main", "action": "Verify"}


@cache
def _settled() -> Observed:
    made = world(1)
    spec = made.cluster.spec.model_dump(by_alias=True, exclude_none=True)
    given = type(made.cluster.spec).model_validate({**spec, "coldTier": {"bucket": "flights"}})
    made.cluster = replace(made.cluster, spec=given)
    made.settle()
    made.seconds = 600
    made.settle()
    return made.observe()


def job(changes: Mapping[str, Any] | None = None, *, name: str = "nightly", **more: Any) -> SeenArchiveJob:
    given = {**ARCHIVE, "schedule": "30 2 * * *", **(changes or {})}
    spec = ArchiveJobSpec.model_validate({key: value for key, value in given.items() if value is not None})
    return Seen(name, f"uid-of-{name}", spec, ArchiveJobStatus(), created=CREATED, **more)


def scene(*jobs: SeenArchiveJob, **more: Any) -> Observed:
    return replace(_settled(), archive_jobs=jobs, **more)


def applied(made: act.Plan) -> list[tuple[str, str]]:
    return [one.key for one in made.actions if isinstance(one, act.Apply) and one.key[0] in ("CronJob", "Job")]


def status(made: act.Plan, name: str = "nightly") -> ArchiveJobStatus:
    found = made.statuses["ArchiveJob", name]
    assert isinstance(found, ArchiveJobStatus)
    return found


def condition(found: ArchiveJobStatus, kind: str) -> tuple[str, str, str]:
    return next((one.status, one.reason, one.message) for one in found.conditions if one.type == kind)


def ended(uid: str, *, finished_at: str = ENDED, result: Any = "Succeeded", **more: str) -> SeenRun:
    return SeenRun(f"nightly-{uid}", uid, REQUESTED, finished_at, result, **more)


def left(**values: Any) -> SeenReport:
    given = {"action": "archive", "exit_code": 0, "started_ms": 1, "finished_ms": 2, **values}
    return SeenReport(encode_report(JobReport(**given)))


def following(seen: Observed, made: act.Plan) -> Observed:
    """As after the pass: its statuses are written, and what it applied is there."""
    jobs = [replace(one, status=made.statuses.get(("ArchiveJob", one.name), one.status)) for one in seen.archive_jobs]
    hashes, uids = dict(seen.hashes), dict(seen.uids)
    for one in made.actions:
        if isinstance(one, act.Apply):
            metadata: Any = one.manifest["metadata"]
            hashes[one.key], uids[one.key] = metadata["annotations"]["stratalog.dev/wanted-hash"], f"uid-{one.key[1]}"
    return replace(seen, archive_jobs=tuple(jobs), hashes=hashes, uids=uids)


# What runs ------------------------------------------------------------------------------------------------------------
def test_a_schedule_becomes_a_cron_job_once_and_says_when_it_is_due() -> None:
    seen = scene(job({"timeZone": "Europe/Berlin"}), zones={"Europe/Berlin": ZoneInfo("Europe/Berlin")})
    first = plan(seen)
    assert applied(first) == [("CronJob", "nightly")]
    found = status(first)
    assert found.next_run_at == "2013-01-01T01:30:00Z"
    assert condition(found, "Ready")[:2] == ("Unknown", "NotRunYet") and condition(found, "Reconciled")[0] == "True"
    calm = plan(following(seen, first))
    assert not calm.actions and not calm.statuses, "a pass over what is as it should be writes nothing"


def test_a_schedule_that_is_taken_out_takes_the_cron_job_with_it_and_that_of_another_stays() -> None:
    key = ("CronJob", "nightly")
    seen = scene(job({"schedule": None}), uids={key: "u"}, hashes={**_settled().hashes, key: "h"})
    assert list(plan(replace(seen, scheduled=frozenset({"nightly"}))).actions) == [
        act.DeleteObject(*key, "u", "its ArchiveJob has no schedule any more")
    ]
    assert not plan(seen).actions, "a person's CronJob of that name"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": "61 * * * *"}, "minute"),
        ({"schedule": "0 0 0 0 0"}, "day of the month"),
        ({"runRequestedAt": "2016-12-31T23:59:60Z"}, "not a time of a clock"),
        ({"archive": {"to": "s3://t/m", "kind": "json", "schemaConfigMapRef": "s"}}, "schemaKey"),
    ],
)
def test_what_cannot_be_is_said_in_a_condition(changes: dict[str, Any], why: str) -> None:
    made = plan(scene(job(changes)))
    word = condition(status(made), "Reconciled")
    assert word[:2] == ("False", "InvalidSpec") and why in word[2]


def test_without_an_object_store_nothing_runs_and_the_condition_says_what_to_do() -> None:
    seen = scene(job())
    cold = seen.cluster.spec.model_copy(update={"cold_tier": None})
    made = plan(replace(seen, cluster=replace(seen.cluster, spec=cold)))
    assert not applied(made) and "spec.coldTier" in condition(status(made), "Reconciled")[2]


def test_a_cluster_whose_image_is_a_digest_says_nothing_of_the_image_of_its_jobs() -> None:
    seen = scene(job(), job({"image": {"repository": "own", "tag": "1"}}, name="own"))
    image = seen.cluster.spec.image.model_copy(update={"digest": f"sha256:{'0' * 64}"})
    spec = seen.cluster.spec.model_copy(update={"image": image})
    made = plan(replace(seen, cluster=replace(seen.cluster, spec=spec)))
    assert applied(made)[-1:] == [("CronJob", "own")] and ("CronJob", "nightly") not in applied(made)
    assert "give spec.image" in condition(status(made), "Reconciled")[2]


def test_a_cluster_that_never_answered_is_waited_for() -> None:
    """Else the job could read what another cluster left in the bucket."""
    seen = scene(job())
    nameless = seen.cluster.status.model_copy(update={"cluster_id": ""})
    made = plan(replace(seen, meta=None, cluster=replace(seen.cluster, status=nameless)))
    assert not applied(made) and condition(status(made), "Reconciled")[1] == "Waiting"


def test_a_paused_cluster_changes_no_job_and_still_reads_what_ended() -> None:
    seen = scene(job(), runs={"nightly": (ended("a"),)}, reports={"a": left(rows=7)})
    paused = seen.cluster.spec.model_copy(update={"paused": True})
    made = plan(replace(seen, cluster=replace(seen.cluster, spec=paused)))
    assert not applied(made)
    assert condition(status(made), "Reconciled")[1] == "Paused" and status(made).last_run is not None


# Requests -------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("archive-run-requested")
def test_a_request_runs_once_whenever_the_operator_is_killed() -> None:
    seen = scene(job({"schedule": None, "runRequestedAt": REQUESTED}))
    name = requested_job_name("nightly", REQUESTED)
    assert applied(plan(seen)) == applied(plan(seen)) == [("Job", name)], "until it is seen, it is applied again"
    running = replace(seen, runs={"nightly": (SeenRun(name, "j"),)})
    made = plan(running)
    assert not applied(made) and status(made).active_runs == 1
    assert condition(status(made), "Progressing")[:2] == ("True", "Runs")
    request = status(made).request
    assert request is not None and (request.job, request.done_at) == (name, None)
    over = replace(following(running, made), runs={"nightly": (replace(ended("j"), name=name),)}, reports={"j": left()})
    done = plan(over)
    assert status(done).request == request.model_copy(update={"done_at": ENDED})
    gone = replace(following(over, done), runs={})
    assert not plan(gone).actions and not plan(gone).statuses, "its Job went by its age: that is no new request"


@pytest.mark.fault("archive-run-requested")
def test_a_job_that_a_person_deleted_ends_its_request() -> None:
    seen = scene(job({"schedule": None, "runRequestedAt": REQUESTED}))
    running = replace(seen, runs={"nightly": (SeenRun(requested_job_name("nightly", REQUESTED), "j"),)})
    deleted = replace(following(running, plan(running)), runs={})
    made = plan(deleted)
    request = status(made).request
    assert not applied(made) and request is not None and request.done_at == deleted.now


def test_a_request_that_is_older_than_the_object_or_has_not_come_does_nothing() -> None:
    older = plan(scene(job({"schedule": None, "runRequestedAt": "2012-12-31T00:00:00Z"})))
    request = status(older).request
    assert not applied(older) and request is not None and request.ignored
    assert not applied(plan(scene(job({"schedule": None, "runRequestedAt": "2033-01-01T00:00:00Z"}))))


def test_a_request_waits_for_a_run_under_way_unless_runs_may_be_side_by_side() -> None:
    asked = {"schedule": None, "runRequestedAt": REQUESTED}
    waits = plan(scene(job(asked), runs={"nightly": (SeenRun("nightly-1", "r"),)}))
    assert not applied(waits) and condition(status(waits), "Reconciled")[1] == "Waiting"
    beside = plan(scene(job({**asked, "concurrencyPolicy": "Allow"}), runs={"nightly": (SeenRun("nightly-1", "r"),)}))
    assert len(applied(beside)) == 1


# Ended runs -----------------------------------------------------------------------------------------------------------
def test_the_status_has_what_the_report_says() -> None:
    report = left(rows=7, bytes=900, segments=2, lag_records=3, is_committed=True)
    made = plan(scene(job(), runs={"nightly": (ended("a"),)}, reports={"a": report}))
    found = status(made)
    last = found.last_run
    assert last is not None and (last.rows, last.bytes, last.segments, last.exit_code) == (7, 900, 2, 0)
    assert (found.lag_records, found.last_commit_at, found.last_success_at) == (3, ENDED, ENDED)
    assert condition(found, "Ready")[:2] == ("True", "LastRunSucceeded")


@pytest.mark.fault("archive-run-fails")
def test_a_run_that_failed_says_why_and_keeps_what_the_runs_before_did() -> None:
    seen = scene(job(), runs={"nightly": (ended("a"),)}, reports={"a": left(lag_records=3, is_committed=True)})
    seen = following(seen, plan(seen))
    later = "2013-01-01T00:05:00Z"
    failed = ended("b", finished_at=later, result="Failed", reason="PodFailurePolicy", message="exit code 2")
    seen = replace(seen, runs={"nightly": (ended("a"), failed)}, reports={"b": left(exit_code=2, message="topic gone")})
    made = plan(seen)
    found = status(made)
    assert (found.last_success_at, found.last_commit_at, found.lag_records) == (ENDED, ENDED, 3)
    assert found.failures_in_a_row == 1
    assert condition(found, "Ready") == ("False", "LastRunFailed", "topic gone; its Job is nightly-b")
    (told,) = [one for one in news(seen, made.statuses) if one.kind == "ArchiveJob"]
    assert told.is_warning and told.reason == "LastRunFailed"


@pytest.mark.fault("archive-run-fails")
@pytest.mark.parametrize(
    ("report", "reason", "word"),
    [
        (None, "DeadlineExceeded", "longer than deadlineSeconds"),
        (None, "BackoffLimitExceeded", "pod is gone"),
        (SeenReport("", "OOMKilled"), "BackoffLimitExceeded", "OOMKilled"),
        (SeenReport("no such file"), "BackoffLimitExceeded", "not JSON"),
        (SeenReport('{"version": 9}'), "BackoffLimitExceeded", "another version"),
        (SeenReport("x" * 100_000), "BackoffLimitExceeded", "characters"),
    ],
)
def test_a_run_without_a_report_fails_in_words_of_a_bounded_length(
    report: SeenReport | None, reason: str, word: str
) -> None:
    run = ended("a", result="Failed", reason=reason, message="y" * 5000)
    found = status(plan(scene(job(), runs={"nightly": (run,)}, reports={"a": report})))
    last = found.last_run
    assert last is not None and last.exit_code is None and len(last.message) <= 1100
    assert word in last.message and found.lag_records is None


@pytest.mark.fault("archive-run-fails")
def test_a_run_that_kubernetes_counts_as_done_is_one_whatever_its_pod_says() -> None:
    lies = SeenReport('{"version": 1, "rows": -1}')
    found = status(plan(scene(job(), runs={"nightly": (ended("a"),)}, reports={"a": lies})))
    last = found.last_run
    assert last is not None and last.result == "Succeeded" and "wrong value" in last.message and last.rows == 0


@pytest.mark.fault("archive-run-fails")
def test_three_failures_in_a_row_need_a_person_and_a_success_ends_that() -> None:
    runs = tuple(ended(f"{n}", finished_at=f"2013-01-01T00:0{n}:00Z", result="Failed") for n in (3, 4, 5))
    seen = scene(job(), runs={"nightly": runs}, reports={run.uid: None for run in runs})
    made = plan(seen)
    assert condition(status(made), "Stalled")[:2] == ("True", "FailsEachTime") and status(made).failures_in_a_row == 3
    good = ended("6", finished_at="2013-01-01T00:06:00Z")
    again = replace(following(seen, made), runs={"nightly": (*runs, good)}, reports={"6": left()})
    assert condition(status(plan(again)), "Stalled")[0] == "False" and status(plan(again)).failures_in_a_row == 0


def test_runs_whose_reports_were_not_read_wait_for_the_next_pass() -> None:
    runs = (ended("a"), ended("b", finished_at="2013-01-01T00:05:00Z"))
    made = plan(scene(job(), runs={"nightly": runs}, reports={"a": left(rows=1)}))
    last = status(made).last_run
    assert last is not None and last.uid == "a" and made.again_seconds < 60


# Many, strange, and without a cluster ---------------------------------------------------------------------------------
def test_names_of_any_length_give_different_names_that_fit() -> None:
    names = ["a", "a" * 52, "a" * 53, "a" * 63, "a" * 35 + "-" * 10 + "b" * 18]
    made = [cron_job_name(name) for name in names]
    assert len(set(made)) == len(names) and all(len(name) <= 52 and not name.endswith("-") for name in made)
    requested = [requested_job_name(name, at) for name in names for at in (REQUESTED, ENDED)]
    assert len(set(requested)) == len(requested) and all(len(name) <= 63 for name in requested)


def test_two_thousand_jobs_have_their_turns() -> None:
    jobs = tuple(job(name=f"job-{number}") for number in range(2000))
    made = plan(scene(*jobs))
    assert len(applied(made)) == 2000
    whole, in_turns = apart(made.actions)
    assert not whole and len(in_turns) == 2000, "each waits for its turn, and no node waits for it"


def test_a_refused_job_is_told_on_its_object_alone() -> None:
    from stratalog.model.errors import InvalidRequest

    seen = scene(job())
    made = plan(seen)
    failures = [Failure(one, InvalidRequest("unknown time zone Nowhere")) for one in made.actions]
    told = told_with(seen, {}, failures)
    assert set(told) == {("ArchiveJob", "nightly")}
    found = told["ArchiveJob", "nightly"]
    assert isinstance(found, ArchiveJobStatus) and condition(found, "Stalled")[1] == "Refused"


def test_an_object_that_cannot_be_read_stops_no_node() -> None:
    unread = (Unread("ArchiveJob", "odd", "u", "spec.action: unknown"),)
    made = plan(scene(job(), unread=unread))
    assert applied(made) == [("CronJob", "nightly")]
    ready = next(one for one in _settled().cluster.status.conditions if one.type == "Ready")
    assert ready.status == "True"


@pytest.mark.fault("archive-cluster-gone")
def test_with_its_cluster_the_runs_end_and_the_object_says_what_it_waits_for() -> None:
    seen = scene(job(), uids={("CronJob", "nightly"): "u"})
    going = plan(replace(seen, cluster=replace(seen.cluster, is_deleting=True)))
    assert act.DeleteObject("CronJob", "nightly", "u", "cluster main is deleted") in going.actions
    without = orphans("main", [("ArchiveJob", job())], (), ENDED, [("nightly", "u")])
    assert [(one.kind, one.name) for one in without.actions if isinstance(one, act.DeleteObject)] == [
        ("CronJob", "nightly")
    ]
    found = without.statuses["ArchiveJob", "nightly"]
    assert isinstance(found, ArchiveJobStatus) and condition(found, "Ready")[1] == "NoCluster"


# What is read ---------------------------------------------------------------------------------------------------------
def _job(**status_of: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n", "uid": "u", "creationTimestamp": CREATED}, "status": status_of}


def test_a_job_is_under_way_until_kubernetes_says_how_it_ended() -> None:
    going = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}
    assert parse.run(_job(conditions=[going], startTime=REQUESTED)).result == ""
    failed = {"type": "Failed", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": ENDED}
    found = parse.run(_job(conditions=[going, failed]))
    assert (found.result, found.finished_at, found.reason, found.message) == ("Failed", ENDED, "R", "m")
    whole = parse.run(_job(conditions=[{"type": "Complete", "status": "True"}], completionTime=ENDED))
    assert (whole.result, whole.finished_at, whole.reason) == ("Succeeded", ENDED, "")


def test_the_report_is_that_of_the_pod_that_ended_last() -> None:
    def pod(finished_at: str, text: str, reason: str) -> dict[str, Any]:
        state = {"terminated": {"finishedAt": finished_at, "message": text, "reason": reason}}
        return {"status": {"containerStatuses": [{"name": "job", "state": state}]}}

    assert parse.report([]) is None
    assert parse.report([{"status": {}}, {}]) is None
    found = parse.report([pod(ENDED, "second", "OOMKilled"), pod(REQUESTED, "first", "Error")])
    assert found == SeenReport("second", "OOMKilled")


def test_a_verification_needs_neither_topics_nor_a_schedule() -> None:
    spec = ArchiveJobSpec.model_validate({**VERIFY, "runRequestedAt": REQUESTED})
    made = plan(scene(Seen("scrub", "u", spec, ArchiveJobStatus(), created=CREATED)))
    (key,) = applied(made)
    assert key[0] == "Job" and status(made, "scrub").next_run_at is None
