"""Errors cross HTTP with their kind; requests are sent again only when that does no harm."""

from __future__ import annotations

import pytest

from stratalog.meta_api.attempts import AttemptLog, Repeat, RetryPolicy
from stratalog.meta_api.problems import Problem, from_problem, to_problem
from stratalog.meta_api.wire import PROBLEM, read_problem
from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DiskFull,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Reserved,
    StratalogError,
    Unavailable,
)

STATUS = {
    AlreadyExists: 409,
    Conflict: 409,
    DiskFull: 507,
    Fenced: 412,
    InvalidRequest: 400,
    LimitExceeded: 413,
    NotFound: 404,
    OutcomeUnknown: 500,
    Rejected: 400,
    Reserved: 403,
    StratalogError: 500,
    Unavailable: 503,
}


@pytest.mark.parametrize("kind", list(STATUS))
def test_every_kind_of_error_comes_back_as_itself(kind: type[StratalogError]) -> None:
    problem = to_problem(kind("what, where, what next"))
    assert problem.status == STATUS[kind]
    back = read_problem(problem.status, PROBLEM.write(problem), "GET /x")
    assert type(back) is kind and str(back) == "what, where, what next"


def test_corrupt_keeps_its_place() -> None:
    back = from_problem(to_problem(Corrupt("bad", source="file", position=7)))
    assert isinstance(back, Corrupt)
    assert (back.reason, back.source, back.position) == ("bad", "file", 7)


@pytest.mark.parametrize(("status", "kind"), [(422, Rejected), (500, OutcomeUnknown), (503, OutcomeUnknown)])
def test_a_kind_of_a_newer_service_is_known_by_whose_fault_it_is(status: int, kind: type[StratalogError]) -> None:
    problem = Problem(type="urn:stratalog:error:Novel", title="Novel", status=status, detail="x")
    assert type(from_problem(problem)) is kind


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"{}", b"\xff\xfe", b"[1]"])
def test_an_answer_that_is_not_a_problem_says_nothing_about_what_was_done(body: bytes) -> None:
    for status in (404, 502, 503):
        assert type(read_problem(status, body, "POST /v1/topics")) is OutcomeUnknown


UNSENT, UNSURE = Unavailable("no connection"), OutcomeUnknown("answer lost")


@pytest.mark.parametrize(
    ("repeat", "failures", "final"),
    [
        # Surely not done: again, until patience ends.
        (Repeat.NEVER, [UNSENT, UNSENT], None),
        (Repeat.NEVER, [UNSENT, UNSENT, UNSENT], Unavailable),
        (Repeat.IDEMPOTENT, [UNSENT, UNSENT, UNSENT], Unavailable),
        (Repeat.READ, [UNSENT, UNSENT, UNSENT], Unavailable),
        # May be done.
        (Repeat.NEVER, [UNSURE], OutcomeUnknown),
        (Repeat.NEVER, [UNSENT, UNSURE], OutcomeUnknown),
        (Repeat.IDEMPOTENT, [UNSURE, UNSURE], None),
        (Repeat.IDEMPOTENT, [UNSURE, UNSENT, UNSENT], OutcomeUnknown),
        (Repeat.READ, [UNSURE, UNSURE, UNSURE], Unavailable),
        # Refused: never again.
        (Repeat.READ, [NotFound("x")], NotFound),
        (Repeat.IDEMPOTENT, [UNSURE, Conflict("x")], Conflict),
    ],
)
def test_a_request_is_sent_again_when_that_does_no_harm(
    repeat: Repeat, failures: list[StratalogError], final: type[StratalogError] | None
) -> None:
    log = AttemptLog(repeat, attempts=3)
    told = [log.failed(failure) for failure in failures]
    assert all(outcome is None for outcome in told[:-1])
    assert (type(told[-1]) if told[-1] is not None else None) is final


def test_pauses_grow_to_a_bound_and_are_spread() -> None:
    policy = RetryPolicy(first_pause_s=0.1, longest_pause_s=1.0)
    assert [policy.pause_s(attempt, lambda: 1.0) for attempt in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.pause_s(5_000, lambda: 0.25) == 0.25
