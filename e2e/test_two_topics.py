"""E34: two TopicStorage objects name one topic. The older one has it, the younger one says so and changes nothing."""

from __future__ import annotations

import pytest

from stratalog_e2e.place import BOOTSTRAP, Place, topic_object

pytestmark = pytest.mark.scenario("E34")


def test_the_older_one_wins_and_the_younger_one_says_conflict(stored: Place) -> None:
    stored.expected_warnings |= {"OlderHasIt", "InvalidSpec"}
    stored.make_cluster()
    stored.make_topic("older", shards=2)
    stored.clients.start(BOOTSTRAP, "older", shards=2)
    younger = topic_object("younger", shards=5)
    younger["spec"]["topicName"] = "older"
    stored.apply(younger)
    stored.until_condition("topicstorage", "younger", "Conflict", "True", 60)
    assert "older" in stored.condition("topicstorage", "younger", "Conflict")["message"]
    assert stored.condition("topicstorage", "older", "Conflict")["status"] == "False"
    assert (stored.get("topicstorage", "older") or {})["status"]["observed"]["shards"] == 2
    # It takes over once the older one is gone.
    stored.kube.delete("topicstorage", "older", stored.name, timeout=60)
    stored.until_condition("topicstorage", "younger", "Conflict", "False", 60)
