"""A test is tried again for one reason only: something did not come in time on a slow machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.model.errors import Corrupt, NotLeader
from support.impatience import IMPATIENT, MOST, keep_names, ran_out_of_patience
from support.waiting import eventually_sync


def judged(error: BaseException) -> bool:
    with pytest.raises(BaseException) as caught:
        raise error
    return ran_out_of_patience(caught)


def test_what_did_not_come_in_time_is_distinguished_from_what_came_and_was_wrong() -> None:
    assert judged(TimeoutError("5 s"))
    assert judged(NotLeader("nobody leads", None))
    with pytest.raises(AssertionError) as late:
        eventually_sync(lambda: False, timeout=0.0)
    assert ran_out_of_patience(late)
    behind = AssertionError("no answer")
    behind.__cause__ = TimeoutError()
    assert judged(behind)
    for wrong in (AssertionError("assert 1 == 2"), Corrupt("x", source="y", position=0), KeyError("lost: 46 records")):
        assert not judged(wrong)


def test_an_error_that_is_its_own_cause_is_judged_all_the_same() -> None:
    error = Corrupt("x", source="y", position=0)
    error.__cause__ = error
    assert not judged(error)


def report(name: str, *, is_impatient: bool) -> Any:
    return SimpleNamespace(nodeid=name, user_properties=[(IMPATIENT, True)] if is_impatient else [])


def test_names_are_kept_of_a_few_alone_and_of_none_beside_another_failure(tmp_path: Path) -> None:
    path = tmp_path / "build" / "impatient.txt"
    keep_names(path, {"failed": [report("a", is_impatient=True)], "error": [report("a", is_impatient=True)]})
    assert path.read_text() == "a\n"
    keep_names(path, {"failed": [report("a", is_impatient=True), report("b", is_impatient=False)]})
    assert not path.exists()
    keep_names(path, {"failed": [report(str(number), is_impatient=True) for number in range(MOST + 1)]})
    assert not path.exists()
    keep_names(path, {})
    assert not path.exists()
    late = {"failed": [report("a", is_impatient=True)]}
    keep_names(path, late)
    keep_names(path, late, pytest.ExitCode.INTERRUPTED)
    assert not path.exists(), "the tests that did not run have not passed"


def ci_run(repository: Path, place: Path, make: str, again: str) -> subprocess.CompletedProcess[str]:
    """`.ci/run` with a stand-in for each program that it runs."""
    (place / ".ci").mkdir()
    shutil.copy(repository / ".ci" / "run", place / ".ci" / "run")
    for path, script in (("bin/make", make), (".venv/bin/python", again)):
        (place / path).parent.mkdir(parents=True)
        (place / path).write_text(f"#!/bin/sh\n{script}\n")
        (place / path).chmod(0o755)
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        [place / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


FAILS_LATE = 'case "$*" in *test*) mkdir -p build; echo tests/test_a.py::test_b > build/impatient.txt; exit 2;; esac'


@pytest.mark.parametrize("code", [0, 1])
def test_the_run_of_all_tests_tries_what_was_late_once_more_and_ends_as_that_does(
    repository: Path, tmp_path: Path, code: int
) -> None:
    ran = ci_run(repository, tmp_path, FAILS_LATE, f'echo "again: $*"; exit {code}')
    assert "NOT IN TIME" in ran.stdout and "again: -m pytest -n 0 tests/test_a.py::test_b\n" in ran.stdout
    assert ran.returncode == code


def test_the_run_of_all_tests_tries_nothing_again_that_an_earlier_run_noted(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "impatient.txt").write_text("tests/test_a.py::test_b\n")
    ran = ci_run(repository, tmp_path, 'case "$*" in *test*) exit 2;; esac', "exit 0")
    assert "NOT IN TIME" not in ran.stdout and ran.returncode == 1
