"""Each row of the page of faults has a key and a test that causes the fault; the page explains every number that the
code names, and every reason for which a retirement waits."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from stratalog.model.retirement import WaitReason
from support import faults
from support.source_tree import REPOSITORY, project_files, relative

NUMBER = re.compile(r"\bF[1-9][0-9]?\b")
ONE_NODE = {*range(27, 35), *range(37, 53), 58, *range(73, 87), 88, 90}
"""The faults that a node by itself can meet."""
SEVERAL_NODES = {*range(1, 24), 25, 26, 35, 54, 55, *range(60, 73)}
"""Those of a cluster. 24 needs several volumes in a node."""
NODES_THAT_LEAVE = {36, 91, 92, 93}


def test_every_row_has_a_key_of_its_own() -> None:
    rows = faults.rows()
    assert len(rows) > 600
    assert not [row.fault for row in rows if not row.key]
    assert not [key for key, count in Counter(row.key for row in rows).items() if count > 1]


def test_every_fault_on_the_page_is_caused_by_a_test() -> None:
    tests = faults.marked_tests()
    assert not [row.key for row in faults.rows() if row.key not in tests]


def test_every_mark_of_a_test_names_a_row() -> None:
    known = {row.key for row in faults.rows()}
    assert not {key: tests for key, tests in faults.marked_tests().items() if key not in known}


def test_every_fault_that_applies_and_every_number_in_the_code_is_explained() -> None:
    explained = {number for row in faults.rows() for number in NUMBER.findall(row.fault)}
    assert {f"F{number}" for number in ONE_NODE | SEVERAL_NODES | NODES_THAT_LEAVE} <= explained
    unknown = {
        f"{number} in {relative(path)}"
        for path in project_files()
        if path.suffix == ".py"
        for number in NUMBER.findall(path.read_text(encoding="utf-8"))
        if number not in explained
    }
    assert not unknown


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_for_which_a_retirement_waits_has_a_row_whose_test_speaks_of_it(reason: WaitReason) -> None:
    tests = faults.marked_tests()
    keys = [row.key for row in faults.rows() if f"`{reason}`" in row.reaction or f"`{reason}`" in row.fault]
    paths = {test.partition("::")[0] for key in keys for test in tests.get(key, ())}
    texts = [(REPOSITORY / path).read_text(encoding="utf-8") for path in paths]
    assert any(f"WaitReason.{reason.name}" in text or f'"{reason}"' in text for text in texts), paths


def test_marks_of_functions_classes_and_modules_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.source_tree.REPOSITORY", tmp_path)
    source = tmp_path / "test_one.py"
    source.write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.slow, pytest.mark.fault('of-module')]\n"
        "class TestTwo:\n"
        "    @pytest.mark.fault('first', 'second')\n"
        "    async def test_three(self): ...\n"
    )
    assert faults.marked_tests([source]) == {
        "of-module": ["test_one.py"],
        "first": ["test_one.py::TestTwo::test_three"],
        "second": ["test_one.py::TestTwo::test_three"],
    }
