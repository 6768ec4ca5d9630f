"""E20: a node finds no machine. It says so; topics and the other nodes know nothing of it."""

from __future__ import annotations

import pytest

from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place, pool_object

pytestmark = pytest.mark.scenario("E20")


def test_a_pool_without_machines_holds_up_nothing_else(stored: Place) -> None:
    stored.expected_warnings |= {"PodNotBack"}  # of the pod that finds no machine: it says so, and that is all
    stored.make_cluster()
    stored.apply(pool_object(1, "nowhere", {"nodeSelector": {"disk": "of-gold"}, "zones": []}))
    stored.until_condition("storagenode", f"{CLUSTER}-nowhere-4", "PodScheduled", "False", 120)
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    stored.scale(4)
    stored.pool_has(4)
    # It never joined, so that there is nothing to retire.
    stored.kube.delete("storagenodepool", "nowhere", stored.name, timeout=120)
    assert all(not one["metadata"]["name"].startswith(f"{CLUSTER}-nowhere") for one in stored.list("storagenodes"))
    traffic.judge()
