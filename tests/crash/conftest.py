"""The logs of the killed nodes belong to the report of a test that failed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from support.node_process import add_logs_to_report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs_to_report(report)
    return report


@pytest.fixture(scope="session")
def crash_seed(request: pytest.FixtureRequest) -> int:
    """Printed by each drill; `--crash-seed` repeats one."""
    return int(request.config.getoption("--crash-seed"))
