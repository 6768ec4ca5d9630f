"""E30: a TopicStorage is deleted. Its policy decides about the topic; a topic that is already gone causes no error."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, Place
from stratalog_e2e.storage import topic_names

pytestmark = [pytest.mark.fast, pytest.mark.scenario("E30")]


def test_the_topic_stays_or_goes_as_the_policy_says(stored: Place) -> None:
    stored.expected_warnings |= {"InvalidSpec"}  # of the one that may not be taken over
    stored.make_cluster()
    for name, policy in (("kept", "Retain"), ("dropped", "Delete"), ("vanished", "Delete")):
        stored.make_topic(name, shards=1, deletionPolicy=policy)
    stored.make_topic()
    stored.clients.start(BOOTSTRAP, "flights", shards=3)
    stored.clients.write_sentinels(BOOTSTRAP, "kept")
    before = stored.clients.read_sentinels(BOOTSTRAP, "kept")

    stored.kube.delete("topicstorage", "kept", stored.name, timeout=60)
    stored.kube.delete("topicstorage", "dropped", stored.name, timeout=60)
    until(lambda: topic_names(stored), lambda names: "dropped" not in names, 60, "the topic is deleted")
    assert "kept" in topic_names(stored)
    assert stored.clients.read_sentinels(BOOTSTRAP, "kept") == before

    # A topic that a user deletes without the operator.
    stored.kube.run("annotate", "scl/main", "stratalog.dev/paused=true", "-n", stored.name)
    stored.stratalog("topics", "delete", "vanished", "--yes", "--admin", "127.0.0.1:9644")
    stored.kube.run("delete", "ts/vanished", "-n", stored.name, "--wait=false")
    stored.kube.run("annotate", "scl/main", "stratalog.dev/paused-", "-n", stored.name)
    until(lambda: stored.get("topicstorage", "vanished"), lambda found: found is None, 60, "the object is gone")

    # An existing topic is adopted only on request.
    stored.make_topic("kept", shards=1, waits=False)
    refused = stored.until_condition("topicstorage", "kept", "Ready", "False", 60)
    assert refused["message"], "it says what is in the way"
    stored.make_topic("kept", shards=1, adoption="Adopt")
    assert stored.clients.read_sentinels(BOOTSTRAP, "kept") == before
