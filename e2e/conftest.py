"""The tests on a real Kubernetes: one cluster and one operator for all of them, a namespace for each.

`STRATALOG_E2E_KEEP=1` leaves everything where it is at the end. What a failed test leaves is in build/e2e.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator

import pytest

from stratalog_e2e.evidence import keep
from stratalog_e2e.images import Images, images
from stratalog_e2e.install import NO_HELM, Operator, has_helm
from stratalog_e2e.kubernetes_api import Kubernetes, until
from stratalog_e2e.leaks import census
from stratalog_e2e.place import Place
from stratalog_e2e.surroundings import REPOSITORY, kubernetes, missing_program

EVIDENCE = REPOSITORY / "build" / "e2e"
PREFIX = "e2e-"
KEEPS = os.environ.get("STRATALOG_E2E_KEEP") == "1"
_FAILED = pytest.StashKey[bool]()
_SKIPPED = pytest.StashKey[bool]()
_TIMES: dict[str, float] = {}
_FIGURES: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fast: in `make e2e-fast`")
    config.addinivalue_line("markers", "scenario(id): its name in the list of scenarios")
    config.addinivalue_line("markers", "without_traffic(why): no producer and consumer run through it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    item.stash[_SKIPPED] = item.stash.get(_SKIPPED, False) or report.skipped
    if report.failed:
        # At once, not only at the end: a run takes an hour, and failures should be visible during it.
        _note(item.name, f"{report.when}:\n{report.longreprtext}\n")
    if report.failed and report.when == "call" and "place" in item.fixturenames:
        place = item.funcargs.get("place")  # type: ignore[attr-defined]
        if isinstance(place, Place):
            keep(place.kube, place.name, EVIDENCE / _plain(item.name))
    _TIMES[item.nodeid] = _TIMES.get(item.nodeid, 0.0) + report.duration
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, seconds in _TIMES.items():
        terminalreporter.write_line(f"{seconds:6.0f} s  {name}  {_FIGURES.get(name, '')}")


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    why = missing_program()
    if why:
        pytest.skip(why)
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    with kubernetes(tmp_path_factory.mktemp("kubernetes")) as found:
        yield found


@pytest.fixture(scope="session")
def tested_images(kube: Kubernetes) -> Images:
    return images(kube)


@pytest.fixture(scope="session")
def operator(kube: Kubernetes, tested_images: Images) -> Iterator[Operator]:
    """Installed for the session; at its end everything is as it was before."""
    if not has_helm():
        pytest.skip(NO_HELM)
    before = census(kube)
    made = Operator(kube, tested_images)
    made.install()
    yield made
    if KEEPS:
        return
    # Whoever still has a finalizer of the operator's needs the operator.
    until(lambda: _of_tests(kube), lambda left: not left, 300, "the tests' namespaces are gone")
    made.uninstall()
    kinds = [one for one in census(kube) - before if one.startswith("customresourcedefinitions")]
    made_here = list((REPOSITORY / "crds").glob("stratalog.dev_*.yaml"))
    assert len(kinds) == len(made_here), f"the definitions must outlive their chart: {kinds}"
    made.remove_definitions()
    until(lambda: sorted(census(kube) - before), lambda left: not left, 300, "all that the tests made is gone")


@pytest.fixture
def place(request: pytest.FixtureRequest, kube: Kubernetes, operator: Operator) -> Iterator[Place]:
    """A namespace of the test's own."""
    made = Place(kube, _namespace(request.node.name), operator)
    yield made
    if request.node.stash.get(_FAILED, False):
        _FIGURES[request.node.nodeid] = made.figures()
        if not KEEPS:
            made.remove()
        return
    try:
        if not request.node.stash.get(_SKIPPED, False):
            made.judge(_why_without_traffic(request.node))
        made.check()
    except AssertionError:
        keep(kube, made.name, EVIDENCE / _plain(request.node.name))
        raise
    finally:
        _FIGURES[request.node.nodeid] = made.figures()
        made.remove()


@pytest.fixture
def stored(place: Place) -> Place:
    """With an S3 server in it."""
    place.make_store()
    return place


@pytest.fixture
def machines(kube: Kubernetes) -> Iterator[Callable[[str], None]]:
    """Whatever a test does to a machine is undone: it gives the command that undoes it beforehand."""
    undo: list[str] = []
    yield undo.append
    for command in undo:
        os.system(command)


def _why_without_traffic(item: pytest.Item) -> str:
    mark = item.get_closest_marker("without_traffic")
    return "" if mark is None else str(mark.args[0])


def _of_tests(kube: Kubernetes) -> list[str]:
    return [name for one in kube.list("namespaces") if (name := one["metadata"]["name"]).startswith(PREFIX)]


def _namespace(test: str) -> str:
    """Another one for each case of a test, however long its name is."""
    return f"{PREFIX}{_plain(test)[:36].strip('-')}-{hashlib.sha256(test.encode()).hexdigest()[:6]}"


def _note(test: str, failure: str) -> None:
    folder = EVIDENCE / _plain(test)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "failure.txt").open("a", encoding="utf-8") as file:
        file.write(failure)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("test_")).strip("-")
