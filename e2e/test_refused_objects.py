"""E04: what a rule of a definition forbids is refused when it is applied, with the rule's own sentence."""

from __future__ import annotations

import json

import pytest

from stratalog_e2e.kubernetes_api import Refused
from stratalog_e2e.place import Place
from support.kind_samples import CASES, RuleCase, sample

pytestmark = [
    pytest.mark.scenario("E04"),
    pytest.mark.without_traffic("nothing that it asks for is ever made"),
]


def test_each_rule_refuses_with_its_own_sentence(place: Place) -> None:
    """One namespace for all cases: nothing is created, because the cluster is paused."""
    wrong = [problem for case in CASES if (problem := _problem(place, case))]
    assert not wrong, "\n".join(wrong)


def _problem(place: Place, case: RuleCase) -> str:
    if case.before is not None:
        # On the server as it is, without keeping it: the rule is about a change.
        return _problem_of_change(place, case)
    try:
        place.kube.run(
            "apply", "--dry-run=server", "-n", place.name, "-f", "-", given=_text(sample(case.kind, case.bad))
        )
    except Refused as refusal:
        return "" if case.message in str(refusal) else f"{case.name}: {refusal}"
    return f"{case.name}: it was taken"


def _problem_of_change(place: Place, case: RuleCase) -> str:
    before = sample(case.kind, {**(case.before or {}), "metadata.annotations": {"stratalog.dev/paused": "true"}})
    # Of a cluster that is nowhere: the operator has nothing to do with it.
    name = before["metadata"]["name"]
    place.kube.run("apply", "-n", place.name, "-f", "-", given=_text(before))
    try:
        place.kube.run(
            "apply", "--dry-run=server", "-n", place.name, "-f", "-", given=_text(sample(case.kind, case.bad))
        )
    except Refused as refusal:
        return "" if case.message in str(refusal) else f"{case.name}: {refusal}"
    finally:
        kind = case.kind.plural
        release = '{"metadata":{"finalizers":null}}'
        place.kube.run("delete", kind, name, "-n", place.name, "--wait=false")
        place.kube.run("patch", kind, name, "-n", place.name, "--type=merge", "-p", release) if place.get(
            kind, name
        ) else None
        place.kube.delete(kind, name, place.name)
    return f"{case.name}: it was taken"


def _text(value: object) -> str:
    return json.dumps(value)
