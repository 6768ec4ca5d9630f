"""What every test run shares: options, and a summary that names what was not run because a program is missing."""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import typer.testing

from support.impatience import IMPATIENT, keep_names, ran_out_of_patience
from support.pipeline_extra import NO_PIPELINE
from support.thorough import is_thorough

# A shell may forbid it. Each of the hundreds of nodes and commands that tests start would compile the product again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Contexts of who runs the tests are none of theirs.
os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir()) / "no-configuration-of-anybody")
os.environ.pop("STRATALOG_CONTEXT", None)
# Python's readline, which pytest imports, exports the terminal's width to every process that is started from here.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# Programs that `make` built from their Go modules come first.
os.environ["PATH"] = (
    f"{Path(__file__).resolve().parent.parent / '.cache' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
)

# Typer's runner makes all commands of the app again for each call, which is most of what such a call takes.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# How long an example takes is the machine's affair.
hypothesis.settings.register_profile("stratalog", deadline=None)
hypothesis.settings.load_profile("stratalog")

REPOSITORY = Path(__file__).resolve().parent.parent
_MOST_PROCESSES = 8
"""Many a test starts a node or a server of its own beside them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-rounds",
        type=int,
        default=8,
        help="rounds of kill -9 that tests/crash makes (8 in `make test`, 200 in `make crash`)",
    )
    parser.addoption(
        "--crash-seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 30),
        help="repeats the random moments of a crash test; each one prints its seed",
    )

    parser.addoption("--chaos-seconds", type=int, default=60, help="how long `make chaos` strikes at a cluster")
    parser.addoption(
        "--chaos-seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="repeats the blows of a run"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a process per core; this one alone where single files, tests or words are asked for.

    Each process reads all tests first, which takes longer than running a few.
    """
    is_part = bool(config.option.keyword) or any(".py" in argument for argument in config.args)
    if is_part:
        config.option.dist = "no"
        return 0
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before marks choose what runs."""
    for item in items:
        if is_thorough(item.path.relative_to(REPOSITORY).as_posix()):
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish() -> None:
    """Freezes what is loaded, so that the garbage collector does not scan it again, which took a tenth of the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def crash_rounds(request: pytest.FixtureRequest) -> int:
    """How many times a crash test kills its process."""
    return int(request.config.getoption("--crash-rounds"))


@pytest.fixture(scope="session")
def chaos_seconds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--chaos-seconds"))


@pytest.fixture(scope="session")
def chaos_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--chaos-seed"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that is being tested."""
    return REPOSITORY


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and ran_out_of_patience(call.excinfo):
        report.user_properties.append((IMPATIENT, True))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Says in a line each whether the real servers and the browser took part: a green run without them proves less."""
    for mark, name in (
        ("real_s3", "real S3 server"),
        ("azurite", "Azurite (Azure Blob Storage)"),
        ("real_etcd", "real etcd"),
        ("real_postgres", "real PostgreSQL"),
        ("real_clickhouse", "ClickHouse's engine"),
        ("real_opensearch", "real OpenSearch"),
        ("real_apiserver", "real Kubernetes API server"),
        ("real_helm", "helm"),
        ("chromium", "Chromium"),
        ("other_shells", "zsh and fish"),
        ("real_spark", "Spark"),
    ):
        _say_whether_it_took_part(terminalreporter, mark, name)
    keep_names(REPOSITORY / "build" / "impatient.txt", terminalreporter.stats, exitstatus)
    without_extra = [one for one in terminalreporter.stats.get("skipped", []) if NO_PIPELINE in str(one.longrepr)]
    if without_extra:
        terminalreporter.write_line(
            f"pipeline: SKIPPED, {len(without_extra)} files of tests did not run ({NO_PIPELINE})"
        )


def _say_whether_it_took_part(terminalreporter: pytest.TerminalReporter, mark: str, name: str) -> None:
    stats = terminalreporter.stats
    # A module that is skipped as a whole is reported by its collection, which has no marks.
    skipped = [report for report in stats.get("skipped", []) if mark in getattr(report, "keywords", ())]
    ran = [
        report
        for outcome in ("passed", "failed")
        for report in stats.get(outcome, [])
        if mark in report.keywords and report.when == "call"
    ]
    if ran:
        terminalreporter.write_line(f"{name}: {len(ran)} tests ran against it")
    if skipped:
        reason = str(skipped[0].longrepr[2]) if isinstance(skipped[0].longrepr, tuple) else "see above"
        terminalreporter.write_line(f"{name}: SKIPPED, {len(skipped)} tests did not run ({reason})")
