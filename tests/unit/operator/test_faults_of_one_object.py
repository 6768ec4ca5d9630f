"""An object that uncovers a fault of the operator says so, and all others have their plans, actions and statuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.model.errors import InvalidRequest
from stratalog.settings.process import ProcessSettings
from stratalog_operator.apply.parking import Parking
from stratalog_operator.apply.perform import Performer
from stratalog_operator.apply.turns import MOST_RENEWED, Turns
from stratalog_operator.observe.known_users import KnownUsers
from stratalog_operator.plan import actions as act
from stratalog_operator.plan import whole
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from stratalog_operator.specs.user import SecretOwner
from support.meta_requests import RecordedRequests
from support.noted_kubernetes import NotedKubernetes
from support.operator_users import storage_user
from support.operator_world import World, settled

SECRET_TEXT = "a-text-that-must-not-be-shown"


def _full_world() -> World:
    """Two of each kind that people write, looked at for the first time in the next pass."""
    one = settled(3)
    one.make_topic("orders")
    for name in ("good", "hostile"):
        topic = {"clusterRef": "main", "topicName": name}
        one.topics[name] = Seen(name, f"t-{name}", TopicStorageSpec.model_validate(topic), TopicStorageStatus())
        mount = {"clusterRef": "main", "source": {"topics": {"names": ["orders"]}}}
        one.mounts[name] = Seen(name, f"m-{name}", ReadOnlyMountSpec.model_validate(mount), ReadOnlyMountStatus())
        one.users[name] = storage_user(name)
    return one


def _failing_for(function: Callable[..., Any], hostile: str) -> Callable[..., Any]:
    """The same, but that it fails for the object of this name."""

    def failing(seen: Observed, one: Any, *rest: Any) -> Any:
        if one.name == hostile:
            raise ValueError(SECRET_TEXT)
        return function(seen, one, *rest)

    return failing


PLANS = [
    ("whole.plan_topic", "TopicStorage", "hostile"),
    ("whole.plan_user", "StorageUser", "hostile"),
    ("whole.mount_offer", "ReadOnlyMount", "hostile"),
    ("whole.retire", "StorageNode", "main-hot-1"),
    ("whole.forced", "StorageNode", "main-hot-1"),
    ("whole.disk_lost", "StorageNode", "main-hot-1"),
    ("whole.pool_offer", "StorageNodePool", "hot"),
    ("conditions.node_status", "StorageNode", "main-hot-1"),
    ("conditions.pool_status", "StorageNodePool", "hot"),
    ("conditions.topic_status", "TopicStorage", "hostile"),
    ("conditions.user_status", "StorageUser", "hostile"),
    ("conditions.mount_status", "ReadOnlyMount", "hostile"),
]


@pytest.mark.fault("object-uncovers-operator-fault")
@pytest.mark.parametrize(("function", "kind", "hostile"), PLANS, ids=[one[0] for one in PLANS])
def test_an_error_in_the_plan_of_one_object_leaves_all_others_theirs(
    function: str, kind: str, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = function.partition(".")
    place = f"stratalog_operator.plan.{module}"
    original = getattr(__import__(place, fromlist=[name]), name)
    one = _full_world()
    before = plan(one.observe())
    monkeypatch.setattr(f"{place}.{name}", _failing_for(original, hostile))
    made = plan(one.observe())

    def of_others(actions: tuple[act.Action, ...]) -> list[act.Action]:
        return [action for action in actions if getattr(action, "name", "") != hostile]

    assert of_others(made.actions) == of_others(before.actions) != []
    others = {key for key in before.statuses if key != (kind, hostile)}
    assert {key: made.statuses.get(key) for key in others} == {key: before.statuses[key] for key in others}
    told: Any = made.statuses[kind, hostile]
    (reconciled,) = [found for found in told.conditions if found.type == "Reconciled"]
    assert (reconciled.status, reconciled.reason) == ("False", "Error") and "ValueError" in reconciled.message
    assert SECRET_TEXT not in str(made.statuses) and set(made.faults) == {(kind, hostile)}


@pytest.mark.parametrize(
    "part",
    ["plan_etcd", "plan_certificates", "roll", "missing_readers", "cluster_objects", "plan_rebalance_request"],
)
def test_an_error_in_a_plan_of_the_whole_cluster_leaves_its_users_their_revocation(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _full_world()
    one.settle()
    one.users["good"] = replace(one.users["good"], is_deleting=True)

    def failing(*_: Any) -> Any:
        raise AssertionError(SECRET_TEXT)

    monkeypatch.setattr(f"stratalog_operator.plan.whole.{part}", failing)
    made = plan(one.observe())

    assert [action.owner for action in made.actions if isinstance(action, act.RemoveCredentials)] == ["good"]
    told: Any = made.statuses["StorageCluster", "main"]
    assert next(found.reason for found in told.conditions if found.type == "Reconciled") == "Error"


def test_an_object_says_once_that_its_plan_fails_and_is_planned_again_when_that_is_repaired() -> None:
    one = _full_world()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "plan_topic", _failing_for(whole.plan_topic, "hostile"))
        one.settle()
        assert one.condition("TopicStorage", "hostile", "Reconciled").reason == "Error"
        assert "hostile" not in one.meta_topics and "good" in one.meta_topics
    one.settle()

    assert one.condition("TopicStorage", "hostile", "Reconciled").status == "True" and "hostile" in one.meta_topics


# What is performed ----------------------------------------------------------------------------------------------------
class Failing(RecordedRequests):
    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None:
        if made.topic == "hostile":
            raise UnicodeDecodeError("utf-8", SECRET_TEXT.encode(), 0, 1, SECRET_TEXT)
        self.wishes.append(("make", made.topic))

    async def end_mount(self, mount: str) -> None:
        if mount == "hostile":
            raise KeyError(SECRET_TEXT)
        await super().end_mount(mount)


def _observed() -> Observed:
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    topic = TopicStorageSpec.model_validate({"clusterRef": "main", "topicName": "hostile"})
    topics = (Seen("hostile", "u", topic, TopicStorageStatus()),)
    return Observed("data", "2013-01-01T00:00:00Z", Seen("main", "u", spec, StorageClusterStatus()), topics=topics)


async def test_an_action_that_ends_with_an_error_of_any_kind_ends_no_other_and_its_object_says_so() -> None:
    performer = Performer(NotedKubernetes(), requests := Failing(), Parking(lambda: 0.0), Turns())
    topics = [act.MakeTopic(name, name, 1, 1, {}) for name in ("a", "hostile", "z")]
    made = act.Plan((act.EndMount("hostile"), act.EndMount("good"), *topics), {}, 5)
    with capture_logs() as logs:
        done = await performer.perform(_observed(), made)

    assert requests.wishes == [("end", "good"), ("make", "a"), ("make", "z")]
    assert len(done.refused) == 2 and all(isinstance(error, InvalidRequest) for error in done.refused)
    told: Any = done.written["TopicStorage", "hostile"]
    (reconciled,) = [found for found in told.conditions if found.type == "Reconciled"]
    assert reconciled.reason == "Error" and "UnicodeDecodeError" in reconciled.message
    assert {line["action"] for line in logs} == {"EndMount", "MakeTopic"} and "make_topic:" in str(logs)
    assert SECRET_TEXT not in f"{logs}{done}"


async def test_a_secret_that_ends_a_read_with_an_error_keeps_no_other_user_from_its_password() -> None:
    kubernetes = NotedKubernetes()
    strange = {"metadata": {"uid": "u", "resourceVersion": "1", "annotations": [SECRET_TEXT]}}
    kubernetes.answers_to["/api/v1/namespaces/data/secrets/hostile"] = strange
    known = KnownUsers()
    found = [
        {
            "metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "finalizers": [FINALIZER]},
            "spec": {"clusterRef": "main", "authentication": {"type": "scram-sha-512"}},
        }
        for name in ("good", "hostile")
    ]
    users, _ = known.parse(found)
    with capture_logs() as logs:
        secrets = await known.read_secrets(kubernetes, replace(_observed(), users=users))

    assert set(secrets) == {"good"}
    assert logs and SECRET_TEXT not in str(logs)


# Turns ----------------------------------------------------------------------------------------------------------------
def _renewed(number: int) -> act.PutPassword:
    name = f"user-{number:04}"
    return act.PutPassword(SecretOwner(name, "u", "main", name), act.PasswordSource.GENERATED, "secret", "1")


@pytest.mark.fault("passwords-of-all-renewed")
async def test_a_topic_and_a_new_user_do_not_wait_for_the_passwords_of_2000_users() -> None:
    class Kept(RecordedRequests):
        async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None:
            self.wishes.append(("make", made.topic))

    performer = Performer(NotedKubernetes(), requests := Kept(), Parking(lambda: 0.0), Turns())
    renewed = [_renewed(number) for number in range(2_000)]
    made = act.Plan((*renewed, act.MakeTopic("z", "z", 1, 1, {})), {}, 5)
    done = await performer.perform(_observed(), made)

    assert requests.wishes == [("make", "z")]
    assert done.left == len(renewed) - MOST_RENEWED


def test_renewals_take_turns_until_all_have_had_theirs() -> None:
    turns, waiting = Turns(), {("StorageUser", f"user-{number:03}") for number in range(3 * MOST_RENEWED)}
    had: set[tuple[str, str]] = set()
    for left in (2 * MOST_RENEWED, MOST_RENEWED, 0):
        turn, still = turns.choose(waiting - had, (), waiting)
        assert still == left
        had |= turn

    assert had == waiting
