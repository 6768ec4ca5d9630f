"""E02: what is sealed goes to the object store, is proven there, and is read from there as it was."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, Place
from stratalog_e2e.storage import cold_reads, segments, verify

pytestmark = [pytest.mark.fast, pytest.mark.scenario("E02")]


def test_sealed_segments_are_offloaded_and_their_offsets_read_from_the_store(stored: Place) -> None:
    stored.make_cluster(changes={"config": {"log.retention.check.interval.ms": "2000"}})
    # No second of it stays on disks once it is in the store.
    stored.make_topic(tiering={"hotRetentionSeconds": 0, "retentionSeconds": -1})
    stored.make_topic("sentinel", shards=1, tiering={"hotRetentionSeconds": 0, "retentionSeconds": -1})
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    before = stored.clients.read_sentinels(BOOTSTRAP, "sentinel")
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)

    stored.stratalog("seal", "sentinel", "--admin", stored.admin())
    until(
        lambda: [one for one in segments(stored, "sentinel") if one["state"] == "sealed"],
        lambda sealed: sealed and all(one["tier"] == "cold" for one in sealed),
        180,
        "the sealed segments are in the store alone",
    )
    cold_before = cold_reads(stored)
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel") == before
    assert cold_reads(stored) > cold_before, "they were not read from the store"

    traffic.judge()
    verify(stored, "flights")
    verify(stored, "sentinel")
