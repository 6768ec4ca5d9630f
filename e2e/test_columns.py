"""E03: kubectl shows, waits for and explains every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from stratalog_e2e.columns import cells
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, POOL, Place
from stratalog_e2e.surroundings import REPOSITORY
from stratalog_operator.resources.kinds import CLUSTER as CLUSTER_KIND
from stratalog_operator.resources.kinds import KINDS, Kind
from stratalog_operator.resources.kinds import NODE as NODE_KIND
from stratalog_operator.resources.kinds import POOL as POOL_KIND
from stratalog_operator.resources.kinds import TOPIC as TOPIC_KIND

pytestmark = pytest.mark.scenario("E03")
ALWAYS_FILLED = {
    CLUSTER_KIND.name: {"Ready", "Nodes", "Desired", "Image", "Cold", "Age"},
    POOL_KIND.name: {"Ready", "Nodes", "Desired", "Zones", "Age"},
    NODE_KIND.name: {"Ready", "Pool", "Id", "Zone", "Age"},
    TOPIC_KIND.name: {"Ready", "Shards", "RF", "Policy", "Age"},
}


def test_columns_say_something_and_kubectl_waits_for_conditions(stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic()
    stored.clients.start(BOOTSTRAP, "flights", shards=3)
    wait = ("wait", "--for=condition=Ready", "-n", stored.name, "--timeout=60s")
    stored.kube.run(*wait, f"scl/{CLUSTER}", f"snp/{POOL}", "ts/flights")
    stored.kube.run(*wait, "snode", "--all")
    for kind in KINDS:
        filled = ALWAYS_FILLED.get(kind.name)
        if filled is None:
            continue
        head, *rows = stored.kube.run("get", kind.short_name, "-n", stored.name).splitlines()
        assert rows, f"no {kind.name}"
        titles = {column.name.upper(): column.name for column in kind.columns}
        for row in rows:
            shown = {titles[title]: cell for title, cell in cells(head, row).items() if title in titles}
            assert filled <= shown.keys(), f"{kind.name}: {filled - shown.keys()} is no column of {head!r}"
            empty = {name for name in filled if shown[name] in ("", "<none>", "<unset>")}
            assert not empty, f"{kind.name}: {empty} of {row!r}"
    listed = stored.kube.run("get", "stratalog", "-n", stored.name)
    assert f"/{CLUSTER}" in listed and f"/{POOL}" in listed, "the category names them all"


@pytest.mark.without_traffic("it is about the definitions: there is no cluster")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.short_name)
def test_kubectl_explains_every_field(kind: Kind, place: Place) -> None:
    shown = place.kube.run("explain", kind.plural, "--recursive")
    path = REPOSITORY / "crds" / f"stratalog.dev_{kind.plural}.yaml"
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for way, field in _fields(schema["properties"]["spec"], ("spec",)):
        assert way[-1] in shown
        assert field.get("description"), f"{kind.plural}.{'.'.join(way)} has no text"
    text = place.kube.run("explain", f"{kind.plural}.spec")
    assert "DESCRIPTION" in text and kind.name in text


def _fields(schema: Mapping[str, Any], way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield (*way, name), field
        yield from _fields(field, (*way, name))
