"""E35: a user mounts sealed data of topics and of a snapshot, which are readable under another name until the mounts
end."""

from __future__ import annotations

import json

import pytest

from stratalog_e2e.kubernetes_api import Object, until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = pytest.mark.scenario("E35")


def mount(name: str, source: Object, **more: object) -> Object:
    spec = {"clusterRef": CLUSTER, "source": source, **more}
    return {"apiVersion": "stratalog.dev/v1alpha1", "kind": "ReadOnlyMount", "metadata": {"name": name}, "spec": spec}


def bucket_of(place: Place) -> str:
    """The bucket, as in the command line of the storage nodes."""
    (container,) = next(iter(place.pods().values()))["spec"]["containers"]
    words = [*container.get("command", ()), *container.get("args", ())]
    return str(words[words.index("--bucket") + 1])


def test_topics_and_a_snapshot_are_mounted_read_and_let_go(stored: Place) -> None:
    stored.expected_warnings |= {"Error"}  # of the one whose snapshot is not there
    stored.make_cluster()
    stored.make_topic()
    stored.make_topic("sentinel", shards=2)
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    before = stored.clients.read_sentinels(BOOTSTRAP, "sentinel")
    at = ("--bucket", bucket_of(stored), "--admin", stored.admin())
    stored.stratalog("snapshot", "create", "june", "--topics", "sentinel", *at)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    stored.apply(
        mount("by-time", {"topics": {"names": ["sentinel"]}}, ttlSeconds=3600),
        mount("by-snapshot", {"snapshot": {"name": "june"}}),
        mount("never", {"snapshot": {"name": "never"}}),
    )

    for name in ("by-time", "by-snapshot"):
        made = stored.is_true("readonlymount", name, "Ready", 120)
        assert len(made["status"]["ranges"]) == 2 and made["status"]["segments"] >= 2
    assert made["status"].get("expiresAt") is None
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel@by-snapshot") == before
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel@by-time") == before, "the second ones are not sealed yet"
    told = stored.until_condition("readonlymount", "never", "Reconciled", "False", 120, "Error")
    assert "there is no snapshot 'never'" in told["message"]

    for name in ("by-time", "by-snapshot", "never"):
        stored.kube.delete("readonlymount", name, stored.name)
    listed = lambda: json.loads(stored.stratalog("mounts", "list", "--output", "json", "--admin", stored.admin()))  # noqa: E731
    until(listed, lambda mounts: not mounts, 60, "no mount is left")
    traffic.judge()
