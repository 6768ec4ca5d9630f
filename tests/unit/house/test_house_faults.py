"""The page of faults names tests that exist, explains every number that the code names, every reason for which a
retirement waits, and leaves none unproven."""

from __future__ import annotations

import re

import pytest

from stratalog.model.retirement import WaitReason
from support.source_tree import REPOSITORY, project_files, relative

PAGE = REPOSITORY / "docs" / "faults.md"
NAMED_TEST = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)::(\w+)`")
NUMBER = re.compile(r"\bF[1-9][0-9]?\b")
ONE_NODE = {*range(27, 35), *range(37, 53), 58, *range(73, 87), 88, 90}
"""The faults that a node by itself can meet."""
SEVERAL_NODES = {*range(1, 24), 25, 26, 35, 54, 55, *range(60, 73)}
"""Those of a cluster. 24 needs several volumes in a node."""
NODES_THAT_LEAVE = {36, 91, 92, 93}


def test_every_test_named_on_the_page_exists() -> None:
    named = NAMED_TEST.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 80
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (REPOSITORY / path).is_file()
        or not re.search(rf"^\s*(async )?def {name}\(", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not missing


def test_every_fault_on_the_page_is_shown_by_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    bare = [row for row in rows if not NAMED_TEST.search(row) and not row.startswith("| fault |")]
    assert not bare


def test_every_fault_that_applies_and_every_number_in_the_code_is_explained() -> None:
    explained = {
        number
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
        for number in NUMBER.findall(line.split("|")[1])
    }
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
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = {path for row in rows if f"`{reason}`" in row for path, _ in NAMED_TEST.findall(row)}
    spoken = [(REPOSITORY / path).read_text(encoding="utf-8") for path in named if (REPOSITORY / path).is_file()]
    assert any(f"WaitReason.{reason.name}" in text or f'"{reason}"' in text for text in spoken), named
