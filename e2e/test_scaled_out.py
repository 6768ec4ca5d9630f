"""E05: a pool grows. New nodes get new segments; no old data moves, and no pod restarts."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, Place
from stratalog_e2e.storage import holders, moved, replicas

pytestmark = [pytest.mark.fast, pytest.mark.scenario("E05")]


def test_three_nodes_become_five_and_the_new_ones_take_what_is_new(stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic(shards=6)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=6)
    uids, ids, held = stored.pod_uids(), stored.node_ids(), holders(stored, "flights")

    stored.scale(5)
    stored.pool_has(5)
    assert stored.node_ids() == [*ids, max(ids) + 1, max(ids) + 2], "new nodes have new ids"
    assert stored.pod_uids().items() >= uids.items(), "nobody restarts for others to join"

    new = set(stored.node_ids()) - set(ids)
    stored.stratalog("seal", "flights", "--admin", stored.admin())
    until(lambda: replicas(stored, "flights"), lambda found: found >= new, 180, f"nodes {new} have new segments")
    traffic.flows()
    assert not moved(held, holders(stored, "flights")), "what was there has moved"
    traffic.judge()
