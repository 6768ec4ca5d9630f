"""E44: a person gives up a disk whose node is lost. The decision is about one absence of the node, and is removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.machine_lost import Machines
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place, pool_object, remove_volumes

pytestmark = [
    pytest.mark.scenario("E44"),
    pytest.mark.without_traffic(
        "shards with a single replica stop with their node; their records are compared instead"
    ),
]
ACK = "stratalog.dev/force-retire-ack"
LEAVES_S = 600
LEFT, NAME = 3, f"{CLUSTER}-hot-3"


@pytest.fixture
def lone(stored: Place, machines: Callable[[str], None]) -> Iterator[tuple[Place, Machines]]:
    """A cluster in which some records are on node 3 only."""
    stored.expects_restarts = True
    stored.expected_warnings |= {
        "DecisionIgnored", "LastCopyLost", "ShardUnavailable", "WaitingForNodes", "NeedsAPerson", "PodNotBack",
        "Troubles", "NotHealthy",
    }  # fmt: skip
    changes = {
        "defaults": {"replicationFactor": 1, "minInsyncReplicas": 1},
        "scaleIn": {"mode": "Offload", "verifyIntervalSeconds": 2},
    }
    # Without zones: the node that replaces node 3 must not need the machine that takes no pods.
    stored.apply(stored.cluster_object(changes), pool_object(3, changes={"zones": []}))
    stored.cluster_is_ready()
    stored.make_topic("alone", shards=6, replicationFactor=1, minInsyncReplicas=1, tiering={"enabled": False})
    stored.clients.write_sentinels(BOOTSTRAP, "alone")
    yield stored, Machines(stored, machines)


def test_a_decision_about_an_absence_that_is_over_gives_up_nothing(lone: tuple[Place, Machines]) -> None:
    place, nodes = lone
    before = place.clients.read_sentinels(BOOTSTRAP, "alone")
    with nodes.lost(LEFT):
        _decide(place, "yes")
        first = until(lambda: _offered(place), bool, 180, "the value that names this absence is reported")[-1]
    _decide(place, first)
    _is_ignored(place, f"node {LEFT} is alive")

    with nodes.lost(LEFT):
        _decide(place, first)
        second = until(lambda: _offered(place)[-1], lambda value: value != first, 180, "this is another absence")
        assert second.partition("@")[0] == first.partition("@")[0], "the disk is the same"
        place.kube.patch("snode", NAME, place.name, {"spec": {"retire": True}})
        assert _value_in_status(place) == second
        _decide(place, first)
        until(lambda: _annotation(place), lambda value: value is None, 120, "the decision is removed")
        assert _value_in_status(place) == second, "nothing was given up"

    until(place.node_ids, lambda ids: ids == [1, 2, 4], LEAVES_S, "node 3 came back, and has left with its data moved")
    assert _tomb(place)["givenUpRanges"] == 0
    assert place.clients.read_sentinels(BOOTSTRAP, "alone") == before


def test_a_decision_gives_up_one_disk_and_is_removed(lone: tuple[Place, Machines]) -> None:
    place, nodes = lone
    claim = place.get("persistentvolumeclaim", f"data-{NAME}") or {}
    with nodes.lost(LEFT):
        place.kube.patch("snode", NAME, place.name, {"spec": {"retire": True}})
        _decide(place, _value_in_status(place))
        until(lambda: _messages(place, "DecisionUsed"), bool, 120, "the decision is used")
        until(place.node_ids, lambda ids: ids == [1, 2, 4], LEAVES_S, "node 3 has left")

    assert _tomb(place)["givenUpRanges"] > 0, "what only node 3 had was given up, segments that were open included"
    kept = place.get("persistentvolumeclaim", f"data-{NAME}") or {}
    assert kept["metadata"]["uid"] == claim["metadata"]["uid"]
    assert kept["metadata"]["labels"]["stratalog.dev/released"] == "true", (
        "whenScaled is Delete, and the disk may be well"
    )
    place.pool_has(3)
    place.kube.delete("persistentvolumeclaim", f"data-{NAME}", place.name)
    remove_volumes(place.kube, [kept["spec"]["volumeName"]])


def _decide(place: Place, value: str) -> None:
    place.kube.run("annotate", f"snode/{NAME}", "--overwrite", f"{ACK}={value}", "-n", place.name)


def _value_in_status(place: Place) -> str:
    """What the status of the StorageNode says to write."""
    command = re.compile(rf"kubectl annotate snode {NAME} --overwrite {ACK}=(\S+)")
    look = lambda: command.findall(place.condition("storagenode", NAME, "RetireBlocked")["message"])  # noqa: E731
    return str(until(look, bool, 300, "RetireBlocked has the command that gives the disk up")[0])


def _is_ignored(place: Place, why: str) -> None:
    until(lambda: _annotation(place), lambda value: value is None, 120, "the decision is removed")
    ignored = lambda: _messages(place, "DecisionIgnored")  # noqa: E731
    until(ignored, lambda found: any(why in one for one in found), 60, f"it is reported that {why}")


def _annotation(place: Place) -> str | None:
    node = place.get("storagenode", NAME) or {}
    value: str | None = node["metadata"].get("annotations", {}).get(ACK)
    return value


def _messages(place: Place, reason: str) -> list[str]:
    """Of the Events about node 3, the oldest first."""
    events = [one for one in place.list("events") if one["reason"] == reason and one["involvedObject"]["name"] == NAME]
    return [one["message"] for one in sorted(events, key=lambda one: one["lastTimestamp"])]


def _offered(place: Place) -> list[str]:
    """The values that would have given the disk up, as ignored decisions were answered."""
    found = (re.search(r"is lost as (\S+) now", one) for one in _messages(place, "DecisionIgnored"))
    return [one[1] for one in found if one is not None]


def _tomb(place: Place) -> dict[str, int]:
    cluster = place.get("storagecluster", CLUSTER) or {}
    (tomb,) = (one for one in cluster["status"]["retiredNodes"] if one["nodeId"] == LEFT)
    return {"givenUpRanges": 0, **tomb}
