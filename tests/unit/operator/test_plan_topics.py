"""Topics and mounts that users make, scene by scene: the actions, the result, and what is never deleted with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.declared.topics import plan_topic
from stratalog_operator.plan.failures import Failure, told_with
from stratalog_operator.plan.news import news
from stratalog_operator.plan.observed import Seen, SeenTopic, TopicSums
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from support.operator_world import World, kinds_of, settled, world


def _world() -> World:
    made = world(3)
    made.settle()
    made.done.clear()
    return made


def _topic(one: World, name: str = "orders", created: int = 1, **spec: Any) -> None:
    given = {"clusterRef": "main", "topicName": "orders", **spec}
    at = f"2013-01-01T00:00:{created:02}Z"
    one.topics[name] = Seen(
        name, f"uid-of-{name}", TopicStorageSpec.model_validate(given), TopicStorageStatus(), created=at
    )


def _edit(one: World, name: str = "orders", **spec: Any) -> None:
    seen: SeenTopic = one.topics[name]
    given = seen.spec.model_dump(by_alias=True, exclude_none=True) | spec
    one.topics[name] = replace(seen, spec=TopicStorageSpec.model_validate(given), generation=seen.generation + 1)


def _delete(one: World, name: str = "orders") -> None:
    one.topics[name] = replace(one.topics[name], is_deleting=True)
    if not one.topics[name].finalizers:
        del one.topics[name]


def _conditions(one: World, name: str = "orders") -> dict[str, tuple[str, str]]:
    return {told.type: (told.status, told.reason) for told in one.topics[name].status.conditions}


def test_a_topic_is_made_as_it_is_asked_for_and_then_nothing_is_written() -> None:
    one = _world()
    _topic(one, shards=4, tiering={"retentionSeconds": 60, "hotRetentionSeconds": 30}, config={"segment.ms": "1000"})
    one.settle()
    made = one.meta_topics["orders"]

    assert (made.shard_count, made.replication_factor) == (4, 3)
    assert made.settings == {
        "segment.ms": "1000",
        "retention.ms": "60000",
        "local.retention.ms": "30000",
    }
    assert one.topics["orders"].status.topic_id == str(made.topic_id)
    assert _conditions(one)["Ready"] == ("True", "Serves")
    assert one.is_quiet()


def test_that_a_topic_is_to_be_made_stands_in_its_status_before_it_is_asked_for() -> None:
    one = _world()
    _topic(one)
    first = one.reconcile()
    second = one.reconcile()

    assert "MakeTopic" not in kinds_of(first)
    assert "MakeTopic" in kinds_of(second)


@pytest.mark.fault("operator-killed-request-answer")
@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_an_operator_that_was_killed_after_making_a_topic_knows_whose_it_is(killed_after: int) -> None:
    one = _world()
    _topic(one)
    one.reconcile()
    one.reconcile(killed_after=killed_after)
    one.settle()

    assert one.topics["orders"].status.topic_id == str(one.meta_topics["orders"].topic_id)


def test_a_topic_that_is_there_already_is_left_alone_unless_it_is_to_be_taken_over() -> None:
    one = _world()
    one.make_topic("orders", shards=2, given={"retention.ms": "1"})
    _topic(one, shards=2)
    one.settle()
    refused, untouched = _conditions(one)["Reconciled"], dict(one.meta_topics["orders"].settings)
    _edit(one, adoption="Adopt", tiering={"retentionSeconds": 60})
    one.settle()

    assert refused == ("False", "InvalidSpec")
    assert untouched == {"retention.ms": "1"}
    assert one.meta_topics["orders"].settings == {"retention.ms": "60000"}
    assert _conditions(one)["Ready"] == ("True", "Serves")


def test_a_topic_has_the_defaults_of_its_cluster_where_its_object_names_nothing() -> None:
    one = world(3, {"defaults": {"replicationFactor": 2, "minInsyncReplicas": 1}})
    one.settle()
    _topic(one)
    one.settle()
    made = one.meta_topics["orders"]
    _edit(one, tiering={"retentionSeconds": 60}, minInsyncReplicas=2)
    one.settle()
    named = dict(one.meta_topics["orders"].settings)
    _edit(one, tiering={}, minInsyncReplicas=None)
    one.settle()

    assert (made.shard_count, made.replication_factor, made.settings) == (1, 2, {})
    assert named == {"retention.ms": "60000", "min.insync.replicas": "2"}
    assert one.meta_topics["orders"].settings == {}, "what is not named any more is the cluster's default again"


@pytest.mark.fault("topicstorage-names-retention-adopts")
def test_an_adopted_topic_keeps_what_its_object_does_not_name() -> None:
    one = _world()
    forever = {"retention.ms": "-1", "min.insync.replicas": "1", "acks.policy": "quorum"}
    one.make_topic("orders", shards=6, replicas=2, given=forever)
    _topic(one, adoption="Adopt")
    one.settle()
    adopted = one.topics["orders"].status
    taken = one.meta_topics["orders"]
    ready = _conditions(one)["Ready"]
    _edit(one, adoption="Adopt", config={"segment.ms": "1000"})
    one.settle()
    _edit(one, adoption="CreateOnly", config={})
    one.settle()

    assert (taken.shard_count, taken.replication_factor, taken.settings) == (6, 2, forever)
    assert ready == ("True", "Serves")
    assert adopted.adopted
    assert adopted.observed.policy == "Quorum", "as the topic is, whatever the object says"
    assert one.meta_topics["orders"].settings == {**forever, "segment.ms": "1000"}


def test_what_somebody_else_set_on_an_adopted_topic_is_left_unless_its_object_names_it() -> None:
    one = _world()
    one.make_topic("orders")
    _topic(one, adoption="Adopt", tiering={"retentionSeconds": 60})
    one.settle()
    topic = one.meta_topics["orders"]
    one.meta_topics["orders"] = replace(topic, settings={"retention.ms": "5", "segment.ms": "7"})
    one.settle()

    assert one.meta_topics["orders"].settings == {"retention.ms": "60000", "segment.ms": "7"}


@pytest.mark.parametrize(
    "spec", [{"replicationFactor": 1}, {"minInsyncReplicas": 4}], ids=["fewer replicas", "more in sync"]
)
def test_a_topic_that_would_take_no_write_by_the_clusters_defaults_is_not_made(spec: dict[str, int]) -> None:
    one = _world()
    _topic(one, **spec)
    one.settle()

    assert "orders" not in one.meta_topics
    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert "no write with acks=all would be accepted" in str(one.topics["orders"].status)


def test_a_topic_that_acknowledges_by_a_majority_cannot_be_asked_to_acknowledge_otherwise() -> None:
    one = _world()
    one.make_topic("orders", given={"acks.policy": "quorum"})
    _topic(one, adoption="Adopt", policy="Replicated")
    one.settle()

    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert "leave policy out" in str(one.topics["orders"].status)


def test_a_topic_becomes_direct_and_replicated_again_with_its_object() -> None:
    one = settled(3, spec={"coldTier": {"bucket": "flights"}})
    _topic(one, policy="Direct", replicationFactor=3)
    one.settle()
    made, observed = one.meta_topics["orders"], one.topics["orders"].status.observed.policy
    _edit(one, policy="Replicated")
    one.settle()

    assert (made.settings, made.replication_factor, observed) == ({"storage.policy": "Direct"}, 3, "Direct")
    assert one.meta_topics["orders"].settings == {}
    assert one.topics["orders"].status.observed.policy == "Replicated"


def test_a_direct_topic_of_a_cluster_without_an_object_store_is_not_made() -> None:
    one = _world()
    _topic(one, policy="Direct")
    one.settle()

    assert "orders" not in one.meta_topics
    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert "give it spec.coldTier" in str(one.topics["orders"].status)


def test_settings_and_shards_change_with_the_object_and_what_somebody_else_set_is_put_back() -> None:
    one = _world()
    _topic(one)
    one.settle()
    _edit(one, shards=5, config={"segment.bytes": "1048576"})
    one.settle()
    changed = one.meta_topics["orders"]
    one.meta_topics["orders"] = replace(changed, settings={**changed.settings, "retention.ms": "5"})
    one.settle()

    assert (changed.shard_count, changed.settings["segment.bytes"]) == (5, "1048576")
    assert one.meta_topics["orders"] == changed


def test_what_a_topic_cannot_become_is_said_and_the_rest_is_applied() -> None:
    one = _world()
    one.make_topic("orders", shards=6, replicas=2)
    _topic(one, adoption="Adopt", shards=3, replicationFactor=3, config={"segment.ms": "1000"})
    one.settle()
    fewer = one.topics["orders"].status
    _edit(one, shards=6)
    one.settle()

    assert _conditions(one)["Reconciled"] == ("False", "InvalidSpec")
    assert "6 shards" in str(fewer) and "2 replicas" in str(one.topics["orders"].status)
    assert one.meta_topics["orders"].settings == {"segment.ms": "1000"}


def test_of_two_objects_on_one_topic_the_older_has_it_until_it_is_gone() -> None:
    one = _world()
    _topic(one, "older", created=1, shards=2)
    _topic(one, "younger", created=2, shards=7, adoption="Adopt")
    one.settle()
    first = _conditions(one, "younger")
    shards = one.meta_topics["orders"].shard_count
    _delete(one, "older")
    one.settle()

    assert first["Conflict"] == ("True", "OlderHasIt") and first["Ready"] == ("False", "Conflict")
    assert shards == 2 and one.meta_topics["orders"].shard_count == 7
    assert _conditions(one, "younger")["Conflict"] == ("False", "HasItsTopic")


def test_a_topic_waits_for_as_many_nodes_as_it_asks_replicas_and_delays_no_other() -> None:
    one = _world()
    _topic(one, replicationFactor=4)
    one.scale(2)
    one.settle()

    assert _conditions(one)["Reconciled"] == ("False", "Waiting")
    assert "replication factor 4 needs as many nodes: 2 nodes there" in str(one.topics["orders"].status)
    assert one.node_ids() == [1, 2]


def test_an_object_that_makes_the_plan_fail_says_so_and_the_others_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _world()
    _topic(one, shards=4)
    _topic(one, "broken", 2, topicName="broken")

    def failing(seen: Any, topic: Any, owner: Any) -> Any:
        if topic.name == "broken":
            raise RuntimeError("not thought of")
        return plan_topic(seen, topic, owner)

    monkeypatch.setattr("stratalog_operator.plan.whole.plan_topic", failing)
    for _ in range(3):
        one.reconcile()

    assert set(one.meta_topics) == {"orders"} and one.meta_topics["orders"].shard_count == 4
    assert _conditions(one, "broken")["Reconciled"] == ("False", "Error")
    assert "a fault in the operator (RuntimeError)" in str(one.topics["broken"].status)


def test_a_deleted_object_leaves_its_topic_by_default() -> None:
    one = _world()
    _topic(one)
    one.settle()
    _delete(one)
    one.settle()

    assert "orders" in one.meta_topics and not one.topics


def test_a_deleted_object_takes_its_topic_along_when_it_says_so_and_not_there_is_success() -> None:
    one = _world()
    _topic(one, deletionPolicy="Delete")
    one.settle()
    assert one.topics["orders"].finalizers == {FINALIZER}
    _delete(one)
    one.settle()
    gone = "orders" not in one.meta_topics and not one.topics
    _topic(one, deletionPolicy="Delete")
    one.settle()
    one.meta_topics.clear()
    _delete(one)
    one.settle()

    assert gone and not one.topics


def test_an_object_that_lost_the_conflict_or_never_had_its_topic_takes_nothing_along() -> None:
    one = _world()
    one.make_topic("orders")
    _topic(one, "stranger", deletionPolicy="Delete")
    one.settle()
    _delete(one, "stranger")
    one.settle()
    _topic(one, "older", created=1, adoption="Adopt")
    _topic(one, "younger", created=2, adoption="Adopt", deletionPolicy="Delete")
    one.settle()
    _delete(one, "younger")
    one.settle()

    assert "orders" in one.meta_topics and list(one.topics) == ["older"]


def test_another_topic_of_that_name_is_not_deleted_and_not_changed() -> None:
    one = _world()
    _topic(one, deletionPolicy="Delete")
    one.settle()
    del one.meta_topics["orders"]
    one.make_topic("orders", given={"retention.ms": "7"})
    one.settle()
    told = _conditions(one)["Reconciled"]
    _delete(one)
    one.settle()

    assert told == ("False", "InvalidSpec")
    assert one.meta_topics["orders"].settings == {"retention.ms": "7"} and not one.topics


@pytest.mark.fault("meta-service-answer-topicstorage")
def test_a_deletion_waits_five_minutes_for_a_silent_meta_service_and_then_goes_with_a_warning() -> None:
    one = _world()
    _topic(one, deletionPolicy="Delete")
    one.settle()
    one.is_meta_away = True
    _delete(one)
    one.reconcile()
    one.seconds += 299
    one.reconcile()
    assert "orders" in one.topics
    one.seconds += 1
    seen = one.observe()
    told = news(seen, plan(seen).statuses)
    one.reconcile()

    assert not one.topics and "orders" in one.meta_topics
    assert [(line.is_warning, line.reason) for line in told if line.name == "orders"] == [(True, "Error")]


def test_a_deletion_is_not_waited_for_when_a_person_says_so() -> None:
    one = _world()
    _topic(one, deletionPolicy="Delete")
    one.settle()
    one.is_meta_away = True
    one.topics["orders"] = replace(one.topics["orders"], annotations={"stratalog.dev/release-finalizer": "true"})
    _delete(one)
    one.reconcile()

    assert not one.topics


def test_a_cluster_that_is_deleted_lets_its_topics_go_without_asking_anybody() -> None:
    one = _world()
    _topic(one, deletionPolicy="Delete")
    one.settle()
    one.is_meta_away = True
    one.cluster = replace(one.cluster, is_deleting=True)
    for _ in range(3):
        one.reconcile()

    assert one.topics["orders"].finalizers == frozenset()
    assert "orders" in one.meta_topics


def test_numbers_are_reported_anew_only_when_they_have_moved() -> None:
    one = _world()
    _topic(one)
    one.settle()

    def told(size: int) -> TopicStorageStatus | None:
        seen = one.observe()
        assert seen.meta is not None
        topic = one.meta_topics["orders"]
        sums = {topic.topic_id: TopicSums(hot_bytes=size, cold_bytes=size, oldest_offset=3)}
        found = plan(replace(seen, meta=replace(seen.meta, topic_sums=sums))).statuses.get(("TopicStorage", "orders"))
        if found is None:
            return None
        assert isinstance(found, TopicStorageStatus)
        one.topics["orders"] = replace(one.topics["orders"], status=found)
        return found

    first = told(1000)
    assert first is not None and (first.tiering.hot_bytes, first.tiering.oldest_offset) == (1000, 3)
    assert told(1010) is None
    moved = told(1100)
    assert moved is not None and moved.tiering.hot_bytes == 1100


def test_a_setting_that_is_refused_is_reported_of_its_topic_alone() -> None:
    one = _world()
    _topic(one)
    seen = one.observe()
    failed = [Failure(act.MakeTopic("orders", "orders", 1, 3, {}), InvalidRequest("no such setting"))]
    told = told_with(seen, {}, failed)

    assert list(told) == [("TopicStorage", "orders")]
    assert "no such setting" in str(told)


# Mounts of users
# -------------------------------------------------------------------------------------------------------
def _mount(one: World, name: str = "january", **spec: Any) -> None:
    topics = {"names": ["orders"], "fromTime": "2013-01-01T00:00:00Z", "untilTime": "2013-02-01T00:00:00Z"}
    given = {"clusterRef": "main", "source": {"topics": topics}, **spec}
    one.mounts[name] = Seen(name, f"uid-of-{name}", ReadOnlyMountSpec.model_validate(given), ReadOnlyMountStatus())


def _of_mount(one: World, name: str = "january") -> dict[str, tuple[str, str]]:
    return {told.type: (told.status, told.reason) for told in one.mounts[name].status.conditions}


def test_a_mount_by_hand_is_made_and_told_and_ends_with_its_object() -> None:
    one = _world()
    one.make_topic("orders")
    _mount(one, ttlSeconds=3600)
    one.settle()
    made = [action for action in one.done if isinstance(action, act.MakeMount)]
    status = one.mounts["january"].status
    one.mounts["january"] = replace(one.mounts["january"], is_deleting=True)
    one.settle()

    assert made == [act.MakeMount("january", ("orders",), 1356998400000, 1359676800000, 3_600_000)]
    assert (status.ranges, status.expires_at) == (("orders/0 0..40",), "1970-01-01T01:00:00Z")
    assert not one.user_mounts and not one.mounts


@pytest.mark.fault("readonlymount-names-api-server")
@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "2013-01-01T00:00:00+25:00"])
def test_a_time_that_the_api_server_takes_and_no_calendar_has_stops_only_its_mount(time: str) -> None:
    """The API server (1.34) takes both for times, and `t` and `z` as well. No pass of the cluster got beyond them."""
    one = _world()
    one.make_topic("orders")
    _mount(one, source={"topics": {"names": ["orders"], "fromTime": time}})
    _mount(one, "small", source={"topics": {"names": ["orders"], "untilTime": "2013-02-01t00:00:00z"}})
    one.settle()

    assert _of_mount(one)["Reconciled"] == ("False", "InvalidSpec")
    assert [action.owner for action in one.done if isinstance(action, act.MakeMount)] == ["small"]
    one.mounts["january"] = replace(one.mounts["january"], is_deleting=True)
    one.settle()
    assert set(one.mounts) == {"small"}


@pytest.mark.parametrize(
    ("asked", "mounted"), [([], ["bills/0 0..40", "orders/0 0..40"]), (["bills"], ["bills/0 0..40"])]
)
def test_a_mount_of_a_snapshot_is_made_of_its_topics(asked: list[str], mounted: list[str]) -> None:
    one = _world()
    one.make_topic("orders")
    one.make_topic("bills")
    _mount(one, source={"snapshot": {"name": "month-end", "topics": asked}})
    one.settle()

    made = [action for action in one.done if isinstance(action, act.MakeMount)]
    assert made == [act.MakeMount("january", tuple(asked), 0, 0, 0, "month-end")]
    assert _of_mount(one)["Ready"] == ("True", "Serves")
    assert sorted(one.mounts["january"].status.ranges) == mounted


def test_a_snapshot_that_is_not_there_is_reported() -> None:
    one = _world()
    _mount(one, source={"snapshot": {"name": "never"}})
    one.reconcile()
    seen = one.observe()
    failed = Failure(act.MakeMount("january", (), 0, 0, 0, "never"), NotFound("there is no snapshot 'never'"))
    told = told_with(seen, {}, [failed])

    status: Any = told["ReadOnlyMount", "january"]
    conditions = {one.type: (one.status, one.message) for one in status.conditions}
    assert conditions["Reconciled"] == ("False", "there is no snapshot 'never'")


def test_a_mount_that_is_over_is_not_made_again() -> None:
    one = _world()
    one.make_topic("orders")
    _mount(one)
    one.settle()
    ready = _of_mount(one)["Ready"]
    one.user_mounts.clear()
    one.settle()

    assert ready == ("True", "Serves")
    assert _of_mount(one)["SourceExpired"] == ("True", "Over")
    assert not one.user_mounts and one.is_quiet()


def test_a_mount_of_another_owner_is_neither_taken_nor_ended() -> None:
    one = _world()
    one.make_topic("orders")
    _mount(one, "first")
    one.settle()
    one.user_mounts["january"] = replace(one.user_mounts["first"], name="january")
    _mount(one)
    one.settle()
    told = _of_mount(one)["Reconciled"]
    one.mounts["january"] = replace(one.mounts["january"], is_deleting=True)
    one.settle()

    assert told == ("False", "InvalidSpec")
    assert "january" in one.user_mounts and "january" not in one.mounts


def test_a_mount_waits_for_its_topic_and_its_deletion_for_nobody_who_is_silent_for_five_minutes() -> None:
    one = _world()
    _mount(one)
    one.settle()
    waits = _of_mount(one)["Reconciled"]
    one.make_topic("orders")
    one.settle()
    one.is_meta_away = True
    one.mounts["january"] = replace(one.mounts["january"], is_deleting=True, deleted=one.now)
    one.reconcile()
    assert "january" in one.mounts
    one.seconds += 300
    one.reconcile()

    assert waits == ("False", "Waiting")
    assert not one.mounts and "january" in one.user_mounts
