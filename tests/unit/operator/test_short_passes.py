"""A pass over a cluster with hundreds of topics is short: topics take turns, and the cluster's status is written
first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import CredentialName, ScramMechanism
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.tls.material import TlsMaterial
from stratalog_operator.announce import MOST_WAITING, Announcer
from stratalog_operator.apply.parking import Parking
from stratalog_operator.apply.perform import AT_ONCE, Performed, Performer, let_orphans_go
from stratalog_operator.apply.turns import MOST_IN_A_PASS, Turns
from stratalog_operator.kube.client import path_of
from stratalog_operator.metas import MetaConnection, MetaConnections
from stratalog_operator.passes import Passes
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.declared.topics import owners, plan_topic
from stratalog_operator.plan.news import News
from stratalog_operator.plan.observed import Observed, Seen, SeenMeta, SeenTopic
from stratalog_operator.plan.orphans import OrphanPlan
from stratalog_operator.queue import Key
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.resources.schema import Part
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.stats import OperatorStats
from support.meta_requests import RecordedRequests
from support.noted_kubernetes import NotedKubernetes
from support.waiting import eventually

MANY = 2 * MOST_IN_A_PASS + 20
ORDERS = Resource(ResourceType.TOPIC, "orders")


class TopicRequests(RecordedRequests):
    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None:
        self.wishes.append(("make", made.topic))
        if made.topic.startswith("refused"):
            raise InvalidRequest("no such setting")
        if made.topic.startswith("lost"):
            raise Unavailable("no answer")


def _topic(name: str) -> SeenTopic:
    spec = TopicStorageSpec.model_validate({"clusterRef": "main", "topicName": name})
    return Seen(name, "u", spec, TopicStorageStatus())


def _observed(names: list[str]) -> Observed:
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    whole = Seen("main", "u", spec, StorageClusterStatus())
    of_pool = StorageNodePoolSpec.model_validate({"clusterRef": "main", "storage": {"size": "10Gi"}})
    pools = (Seen("hot", "u", of_pool, StorageNodePoolStatus()),)
    topics = tuple(_topic(name) for name in names)
    return Observed("data", "2013-01-01T00:00:00Z", whole, pools, topics=topics)


def _plan(names: list[str]) -> act.Plan:
    """All are to be guarded, made and told of; so are the cluster and a pool, which come last in the plan."""
    statuses: dict[tuple[str, str], Part] = {("TopicStorage", name): TopicStorageStatus(topic_id="1") for name in names}
    statuses["StorageNodePool", "hot"] = StorageNodePoolStatus(replicas=3)
    statuses["StorageCluster", "main"] = StorageClusterStatus(cluster_id="1")
    actions: list[act.Action] = []
    for name in names:
        actions += [act.AddFinalizer("TopicStorage", name), act.MakeTopic(name, name, 1, 1, {})]
    return act.Plan((*actions, act.EndMount("tier/1")), statuses, 5)


class Rig:
    """Passes one after the other, with what is kept between them; what was done is planned no more."""

    def __init__(self, names: list[str]) -> None:
        self.left, self.requests, self.kubernetes = list(names), TopicRequests(), NotedKubernetes()
        self.seconds, self._turns = 0.0, Turns()
        self._parking = Parking(lambda: self.seconds)

    async def one_pass(self) -> Performed:
        performer = Performer(self.kubernetes, self.requests, self._parking, self._turns)
        done = await performer.perform(_observed(self.left), _plan(self.left))
        told = {name for kind, name in done.written if kind == "TopicStorage"}
        self.left = [name for name in self.left if name not in told or name.startswith(("refused", "lost"))]
        return done

    def made(self) -> set[str]:
        return {name for kind, name in self.requests.wishes if kind == "make"}


@pytest.mark.fault("users-create-change-delete")
async def test_so_many_topics_have_their_turn_in_a_pass_and_all_within_a_few() -> None:
    names = [f"topic-{number:03}" for number in range(MANY)]
    rig = Rig(names)
    left = [(await rig.one_pass()).left for _ in range(3)]

    assert left == [MANY - MOST_IN_A_PASS, MANY - 2 * MOST_IN_A_PASS, 0]
    assert rig.made() == set(names) and len([one for one in rig.requests.wishes if one[0] == "make"]) == MANY
    assert rig.left == []


@pytest.mark.parametrize(
    "revoked",
    [
        act.RemoveRules("zoe", "u", (Rule(ORDERS, "User:CN=zoe", "*", Operation.READ, Permission.ALLOW),), False),
        act.RemoveCredentials("zoe", (CredentialName("zoe", ScramMechanism.SCRAM_SHA_512),)),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_user_is_revoked_in_the_first_pass_however_many_others_have_something_to_do(
    revoked: act.RemoveRules | act.RemoveCredentials,
) -> None:
    """Such as 2,000 users that get other certificates after their authority was replaced."""
    allowed = Rule(ORDERS, "User:x", "*", Operation.READ, Permission.ALLOW)
    others = [act.MakeRules(f"user-{number:04}", (allowed,)) for number in range(2_000)]
    performer = Performer(NotedKubernetes(), requests := RecordedRequests(), Parking(lambda: 0.0), Turns())
    done = await performer.perform(_observed([]), act.Plan((*others, revoked), {}, 5))

    what = revoked.rules if isinstance(revoked, act.RemoveRules) else revoked.names
    assert any(what in wish for wish in requests.wishes)
    assert done.left == len(others) - MOST_IN_A_PASS, "the others have their turns as before"


async def test_users_that_cannot_be_revoked_take_no_turn_of_the_others() -> None:
    """The meta service fails at them each time, say."""

    class Failing(RecordedRequests):
        async def remove_rules(self, rules: tuple[Rule, ...]) -> None:
            raise Unavailable("no answer")

    names = [f"user-{number:03}" for number in range(2 * MOST_IN_A_PASS)]
    allowed = Rule(ORDERS, "User:x", "*", Operation.READ, Permission.ALLOW)
    stuck: list[act.Action] = [act.RemoveRules(name, "u", (allowed,), False) for name in names]
    performer = Performer(NotedKubernetes(), requests := Failing(), Parking(lambda: 0.0), Turns())
    made = act.Plan((*stuck, act.MakeRules("zoe", (allowed,))), {}, 5)
    done = await performer.perform(_observed([]), made)

    assert ("make-rules", (allowed,)) in requests.wishes
    assert (done.left, len(done.failed)) == (MOST_IN_A_PASS, MOST_IN_A_PASS)


async def test_the_cluster_is_reported_of_before_anything_of_a_topic_is_done() -> None:
    rig = Rig([f"topic-{number:03}" for number in range(MANY)])
    await rig.one_pass()

    written = rig.kubernetes.changed()
    assert [path.rsplit("/", 2)[1:] for path in written[:2]] == [["main", "status"], ["hot", "status"]]
    assert rig.requests.wishes[0] == ("end", "tier/1"), "what is no topic comes first, wherever the plan has it"
    assert len(written) == 2 + 2 * MOST_IN_A_PASS


async def test_each_topic_is_guarded_before_it_is_made_and_told_of_afterwards() -> None:
    rig = Rig(["one"])
    rig.kubernetes.refusals["topicstorages/one"] = Unavailable("no answer")
    done = await rig.one_pass()

    assert rig.kubernetes.changed()[2:] == [
        "/apis/stratalog.dev/v1alpha1/namespaces/data/topicstorages/one",
        "/apis/stratalog.dev/v1alpha1/namespaces/data/topicstorages/one/status",
    ]
    assert len(done.failed) == 1 and done.done == 2


@pytest.mark.fault("users-create-change-delete")
async def test_topics_that_fail_each_time_take_their_own_turn_and_not_the_others() -> None:
    bad = [f"{word}-{number:03}" for word in ("lost", "refused") for number in range(MOST_IN_A_PASS)]
    good = [f"topic-{number:03}" for number in range(MOST_IN_A_PASS)]
    rig = Rig([*bad, *good])
    for _ in range(3):
        await rig.one_pass()

    assert rig.made() >= set(good)
    assert sorted(rig.left) == bad


async def test_what_was_refused_for_good_and_says_so_takes_no_turn_while_it_is_waited_with() -> None:
    bad = [f"refused-{number:03}" for number in range(2 * MOST_IN_A_PASS)]
    performer = Performer(NotedKubernetes(), requests := TopicRequests(), Parking(lambda: 0.0), Turns())
    seen, made = _observed(bad), act.Plan(tuple(act.MakeTopic(name, name, 1, 1, {}) for name in bad), {}, 5)
    lefts = []
    for _ in range(3):
        done = await performer.perform(seen, made)
        lefts.append(done.left)
        told = [replace(one, status=done.written.get(("TopicStorage", one.name), one.status)) for one in seen.topics]
        seen = replace(seen, topics=tuple(told))

    assert lefts == [MOST_IN_A_PASS, 0, 0]
    assert len(requests.wishes) == len(bad), "each was asked for once"
    assert done.written == {} and done.failed == []


@pytest.mark.fault("users-create-change-delete")
async def test_a_cluster_that_is_deleted_lets_all_of_its_topics_go_in_one_pass_side_by_side() -> None:
    names = [f"topic-{number:03}" for number in range(MANY)]
    seen = _observed(names)
    seen = replace(seen, cluster=replace(seen.cluster, is_deleting=True))
    kubernetes = NotedKubernetes()
    for name in (*(f"topicstorages/{name}" for name in names), "storageclusters/main"):
        path = f"/apis/stratalog.dev/v1alpha1/namespaces/data/{name}"
        held = {"uid": "u", "resourceVersion": "1", "finalizers": ["stratalog.dev/operator"]}
        kubernetes.answers_to[path] = {"metadata": held}
    drops = [act.DropFinalizer("TopicStorage", name, "") for name in names]
    made = act.Plan((*drops, act.DropFinalizer("StorageCluster", "main", "")), {}, 5)
    done = await Performer(kubernetes, RecordedRequests()).perform(seen, made)

    assert done.done == MANY + 1 and done.left == 0
    assert kubernetes.most == AT_ONCE
    assert kubernetes.requests[-1] == ("PATCH", "/apis/stratalog.dev/v1alpha1/namespaces/data/storageclusters/main")


async def test_what_a_cluster_leaves_behind_is_let_go_side_by_side() -> None:
    kubernetes = NotedKubernetes()
    actions = tuple(act.DropFinalizer("TopicStorage", f"topic-{number}", "") for number in range(3 * AT_ONCE))
    assert await let_orphans_go(kubernetes, "data", OrphanPlan(actions, {})) == []

    assert len(kubernetes.requests) == 3 * AT_ONCE and kubernetes.most == AT_ONCE


# Events ---------------------------------------------------------------------------------------------------------------
def _news(number: int) -> News:
    return News("TopicStorage", f"topic-{number}", "u", False, "Serves", "Ready is True")


async def test_a_pass_does_not_wait_for_its_events() -> None:
    kubernetes, stats = NotedKubernetes(), OperatorStats()
    announcer = Announcer(kubernetes, stats, "one")
    kubernetes.gate.clear()
    running = asyncio.create_task(announcer.run())
    announcer.announce("data", [_news(number) for number in range(3 * AT_ONCE)])
    await eventually(lambda: len(kubernetes.requests) == AT_ONCE)
    assert stats.events == 0
    kubernetes.gate.set()
    await eventually(lambda: stats.events == 3 * AT_ONCE)
    running.cancel()

    assert kubernetes.most == AT_ONCE


async def test_events_that_wait_are_written_at_the_end_or_given_up_in_time_and_never_pile_up() -> None:
    kubernetes, stats = NotedKubernetes(), OperatorStats()
    announcer = Announcer(kubernetes, stats, "one")
    announcer.announce("data", [_news(number) for number in range(MOST_WAITING + 10)])
    kubernetes.gate.clear()
    await announcer.finish(0.01)
    assert stats.events == 0
    kubernetes.gate.set()
    await announcer.finish(60)

    assert stats.events == MOST_WAITING - AT_ONCE, "those that were under way when it gave up are lost"


# Cost -----------------------------------------------------------------------------------------------------------------
class CountedName(str):
    """Of a topic; counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return str.__hash__(self)


def _compared(count: int) -> int:
    """The statuses of a plan for `count` topics."""
    topics = [_topic(f"topic-{number}") for number in range(count)]
    named = [
        replace(one, spec=one.spec.model_copy(update={"topic_name": CountedName(one.spec.topic_name)}))
        for one in topics
    ]
    there = tuple(Topic(f"topic-{number}", UUID(int=number + 1), 1, 3, {}, 0) for number in range(count))
    seen = replace(_observed([]), topics=tuple(named), meta=SeenMeta("cluster-1", (), topics=there))
    CountedName.compared = 0
    first = owners(seen)
    for one in seen.topics:
        plan_topic(seen, one, first[one.spec.topic_name])
    return CountedName.compared


def test_the_plan_compares_names_as_often_as_there_are_topics_and_not_each_with_each() -> None:
    assert 0 < _compared(400) <= 3 * _compared(200) and _compared(400) < 400 * 10


# Passes ---------------------------------------------------------------------------------------------------------------
class TopicsThere(NotedKubernetes):
    """A cluster that was just applied, with topics without a status. A topic whose status is written leaves the
    list."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        metadata = {"name": "main", "uid": "u", "resourceVersion": "1"}
        whole = {"metadata": metadata, "spec": {"meta": {"etcd": {}}}}
        self.answers_to[path_of("StorageCluster", "data", "main")] = whole
        self.missing.add(path_of("Secret", "data", "main-token"))
        self._left = list(names)
        self._list()

    def _list(self) -> None:
        spec = {"clusterRef": "main"}
        self.answers_to[path_of("TopicStorage", "data")] = {
            "items": [
                {"metadata": {"name": name, "uid": "u"}, "spec": {**spec, "topicName": name}} for name in self._left
            ]
        }

    async def ask(self, method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        answer = await super().ask(method, path, *rest, **more)
        name = path.removesuffix("/status").rpartition("/")[2]
        if method == "PATCH" and name in self._left:
            self._left.remove(name)
            self._list()
        return answer


class NoMeta(MetaConnections):
    async def observe(self) -> SeenMeta:
        raise AssertionError("without a pod of it nobody is asked")

    async def connect(self, cluster: Cluster, token: str, own: TlsMaterial | None = None) -> MetaConnection:
        return MetaConnection(self, TopicRequests())

    async def forget(self, key: Key) -> None: ...

    async def close(self) -> None: ...


async def test_one_that_fails_is_reported_when_all_had_their_turn_and_keeps_nobody_waiting() -> None:
    kubernetes = TopicsThere([f"topic-{number:03}" for number in range(MANY)])
    kubernetes.refusals["topic-000/status"] = Unavailable("no answer")
    stats = OperatorStats()
    passes = Passes(kubernetes, NoMeta(), Announcer(kubernetes, stats, "one"), stats)
    for _ in range(2):
        assert await passes.run_pass(("data", "main")) == 0.0, "the others come at once"
    with pytest.raises(Unavailable, match="2 actions failed; the first: no answer"):
        await passes.run_pass(("data", "main"))

    told = {path for path in kubernetes.changed() if "/topicstorages/" in path}
    assert len(told) == MANY
