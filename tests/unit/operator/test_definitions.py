"""The definitions of the kinds as files, and the vocabulary of conditions as a page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stratalog_operator.resources.conditions import (
    OF_KIND,
    Condition,
    ConditionStatus,
    ConditionType,
    merge,
)
from stratalog_operator.resources.definitions import definition, main, render
from stratalog_operator.resources.kinds import KINDS, Kind
from support.kind_samples import CASES, rule_messages


def _root(kind: Kind) -> dict[str, Any]:
    spec: Any = definition(kind)["spec"]
    root = spec["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(root, dict)
    return root


def test_the_folder_is_what_the_models_say(repository: Path) -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in (repository / "crds").glob("*.yaml")}

    assert found == dict(render()), "run: make crds"


def test_the_module_writes_the_folder_and_takes_away_what_is_no_kind_any_more(tmp_path: Path) -> None:
    (tmp_path / "stratalog.dev_gone.yaml").write_text("old")
    (tmp_path / "README.md").write_text("stays")
    subprocess.run([sys.executable, "-m", "stratalog_operator.resources.definitions", str(tmp_path)], check=True)

    assert {path.name for path in tmp_path.iterdir()} == {*render(), "README.md"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_is_explained(kind: Kind) -> None:
    silent = [path for path, schema in _fields(_root(kind), kind.name) if not schema.get("description")]

    assert not silent


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_conditions_are_a_map_by_type_and_say_of_which_generation(kind: Kind) -> None:
    status = _root(kind)["properties"]["status"]["properties"]
    conditions = status["conditions"]

    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"} == set(
        conditions["items"]["properties"]
    )
    assert "observedGeneration" in status
    assert len(OF_KIND[kind.name]) <= conditions["maxItems"]


def test_each_rule_is_shown_to_accept_and_to_refuse() -> None:
    """By a case of `tests/support/kind_samples.py`, which the tests with a real API server run."""
    sentences = {(kind.name, sentence) for kind in KINDS for sentence in rule_messages(_root(kind))}
    shown = [
        [
            (kind, sentence)
            for kind, sentence in sentences
            if case.kind.name == kind and sentence.startswith(case.message)
        ]
        for case in CASES
    ]

    assert all(len(of_a_case) == 1 for of_a_case in shown), "a case is of one rule"
    assert {of_a_case[0] for of_a_case in shown} == sentences


def test_the_page_lists_each_condition_and_no_other(repository: Path) -> None:
    page = (repository / "docs" / "operator.md").read_text(encoding="utf-8")
    table = page.split("## 3. Conditions")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]

    assert set(re.findall(r"`(\w+)`", "".join(rows))) == {kind.value for kind in ConditionType}
    assert {kind.name for kind in KINDS} == set(OF_KIND)


def test_a_status_that_stays_keeps_its_time() -> None:
    first = merge((), {ConditionType.READY: (ConditionStatus.FALSE, "Waiting", "for 3 nodes")}, 1, "t1")
    second = merge(first, {ConditionType.READY: (ConditionStatus.FALSE, "Waiting", "for 2 nodes")}, 2, "t2")
    third = merge(second, {ConditionType.READY: (ConditionStatus.TRUE, "AllServe", "3 nodes")}, 2, "t3")

    assert [one[0].last_transition_time for one in (first, second, third)] == ["t1", "t1", "t3"]
    assert second[0] == Condition(
        type="Ready",
        status="False",
        reason="Waiting",
        message="for 2 nodes",
        observed_generation=2,
        last_transition_time="t1",
    )


def _fields(schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All properties, at whatever depth; metadata is Kubernetes' own."""
    for name, one in schema.get("properties", {}).items():
        if name == "metadata":
            continue
        yield f"{where}.{name}", one
        yield from _fields(one, f"{where}.{name}")
        yield from _fields(one.get("items", {}), f"{where}.{name}[]")


def test_the_command_that_writes_the_definitions_explains_itself_and_writes_nothing_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder named --help was made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "FOLDER" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
