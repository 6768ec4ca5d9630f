"""E28: the object store does not answer for minutes. Producers continue, the cluster reports it, and the backlog is
uploaded afterwards."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.storage import segments, verify

pytestmark = pytest.mark.scenario("E28")
AWAY_S = 300
PER_S = 60


@pytest.mark.fault("object-store-unavailable-minutes")
def test_the_store_is_away_for_five_minutes(stored: Place) -> None:
    stored.expected_warnings |= {"DoesNotAnswer"}
    stored.make_cluster(changes={"defaults": {"segmentBytes": 65536, "replicationFactor": 3, "minInsyncReplicas": 2}})
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3, per_s=PER_S)
    stored.kube.scale("deployment", "store", stored.name, 0)
    stored.until_condition("storagecluster", CLUSTER, "ColdTierAvailable", "False", 180)
    before = sum(traffic.acknowledged().values())
    until(
        lambda: sum(traffic.acknowledged().values()),
        lambda now: now > before + AWAY_S * PER_S,
        4 * AWAY_S,
        "five minutes' worth of records are taken without a store",
    )
    waiting = [one for one in segments(stored, "flights") if one["state"] == "sealed" and one["tier"] == "local"]
    assert waiting, "nothing was sealed in the meantime, so that nothing was shown"

    stored.kube.scale("deployment", "store", stored.name, 1)
    stored.until_condition("storagecluster", CLUSTER, "ColdTierAvailable", "True", 180)
    until(
        lambda: [one for one in segments(stored, "flights") if one["state"] == "sealed" and one["tier"] == "local"],
        lambda left: not left,
        300,
        "all that is sealed is in the store",
    )
    traffic.judge()
    verify(stored, "flights")
