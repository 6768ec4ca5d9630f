"""Whether all that is wanted of an object is still ours, as the API server notes it."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog_operator.observe import parse
from stratalog_operator.plan.ownership import owns

WANTED: dict[str, Any] = {
    "kind": "Service",
    "metadata": {"name": "a", "namespace": "data", "labels": {"app": "a"}},
    "spec": {
        "selector": {"app": "a"},
        "ports": [{"name": "kafka", "port": 9092}],
        "finalizers": ["one"],
        "command": ["a", "b"],
        "resources": {},
    },
}
PORT = 'k:{"port":9092,"protocol":"TCP"}'
NOTED: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:app": {}}},
    "f:spec": {
        "f:selector": {},
        "f:ports": {PORT: {".": {}, "f:name": {}, "f:port": {}}},
        "f:finalizers": {'v:"one"': {}},
        "f:command": {},
    },
}


def _without(*path: str) -> dict[str, Any]:
    """The notes without one; a mapping that has none left is not noted either."""

    def cut(place: dict[str, Any], rest: tuple[str, ...]) -> dict[str, Any]:
        if len(rest) == 1:
            return {key: below for key, below in place.items() if key != rest[0]}
        below = cut(place[rest[0]], rest[1:])
        return {**place, rest[0]: below} if below else cut(place, rest[:1])

    return cut(NOTED, path)


def test_what_was_applied_and_touched_by_nobody_is_ours() -> None:
    assert owns(NOTED, WANTED)


@pytest.mark.parametrize(
    "taken",
    [
        ("f:metadata", "f:labels", "f:app"),
        ("f:spec", "f:selector"),
        ("f:spec", "f:ports", PORT),
        ("f:spec", "f:ports", PORT, "f:name"),
        ("f:spec", "f:finalizers", 'v:"one"'),
        ("f:spec", "f:command"),
    ],
)
def test_whatever_somebody_took_is_missed(taken: tuple[str, ...]) -> None:
    assert not owns(_without(*taken), WANTED)


def test_what_we_set_in_two_ways_is_ours_and_a_status_says_nothing_of_it() -> None:
    half = {"f:spec": NOTED["f:spec"]}
    rest = {"f:metadata": NOTED["f:metadata"]}
    entries = [
        {"manager": "stratalog-operator", "operation": "Apply", "fieldsV1": half},
        {"manager": "stratalog-operator", "operation": "Update", "fieldsV1": rest},
    ]
    of_status = [{**entries[1], "subresource": "status"}]

    def ours(found: list[Any]) -> Any:
        return parse.fields("Service", [{"metadata": {"name": "a", "managedFields": found}}])["Service", "a"]

    assert owns(ours(entries), WANTED)
    assert not owns(ours([entries[0], *of_status]), WANTED)
    assert not owns(ours([]), WANTED)
