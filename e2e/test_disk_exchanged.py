"""E47: the volume of a node is emptied under its claim. The node is stopped from retiring until a person decides."""

from __future__ import annotations

import re

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = pytest.mark.scenario("E47")
NAME = f"{CLUSTER}-hot-3"
EMPTY = """
import os, shutil
for one in os.scandir("/data"):
    shutil.rmtree(one) if one.is_dir(follow_symlinks=False) else os.remove(one)
"""
COMMAND = re.compile(rf"annotate snode {NAME} --overwrite (stratalog.dev/disk-lost-ack=(\S+))")


def test_a_node_with_an_emptied_volume_can_retire_once_a_person_gave_its_first_disk_up(stored: Place) -> None:
    stored.expects_restarts = True
    stored.expected_warnings |= {
        "NeedsAPerson",
        "IdentityChanged",
        "WaitingForNodes",
        "PodNotBack",
        "Troubles",
        "NotHealthy",
    }
    stored.make_cluster()
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    claim = stored.get("persistentvolumeclaim", f"data-{NAME}") or {}
    first = claim["metadata"]["annotations"]["stratalog.dev/storage-id"]

    stored.kube.exec(f"{NAME}-0", stored.name, "python", "-c", EMPTY)
    stored.kube.delete("pod", f"{NAME}-0", stored.name)
    told = stored.until_condition("storagenode", NAME, "StorageBound", "False", 180, "DiskExchanged")
    command = COMMAND.search(told["message"])
    assert command is not None and command[2] == first, told["message"]
    stored.kube.patch("snode", NAME, stored.name, {"spec": {"retire": True}})
    stored.until_condition("storagenode", NAME, "RetireBlocked", "True", 180, "IdentityChanged")
    assert 3 in stored.node_ids() and _disk(stored) == first, "the first disk may come back"

    stored.kube.run("annotate", f"snode/{NAME}", "--overwrite", command[1], "-n", stored.name)
    until(lambda: _disk(stored), lambda disk: disk != first, 120, "the other disk is noted on the claim")
    until(stored.node_ids, lambda ids: ids == [1, 2, 4], 600, "node 4 has joined, and node 3 has left")
    until(lambda: stored.get("persistentvolumeclaim", f"data-{NAME}"), lambda one: one is None, 180, "and its claim")
    stored.pool_has(3)
    traffic.judge()


def _disk(place: Place) -> str:
    claim = place.get("persistentvolumeclaim", f"data-{NAME}")
    return "" if claim is None else str(claim["metadata"]["annotations"]["stratalog.dev/storage-id"])
