"""A pass that makes many topics does not wait for each in turn; whatever else it does keeps its order, before them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from kubernetes.aio.client import ApiClient, Configuration

from stratalog.model.errors import InvalidRequest
from stratalog.settings.process import ProcessSettings
from stratalog_operator.apply.perform import AT_ONCE, Performer
from stratalog_operator.kube.client import Kubernetes
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from support.meta_requests import RecordedRequests


class TogetherRequests(RecordedRequests):
    """Answers for a topic only when a number of topics are requested at the same time."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self._all_are_here = asyncio.Barrier(together)
        self.most = self._asked = 0

    async def make_topic(self, made: act.MakeTopic, process: ProcessSettings) -> None:
        self._asked += 1
        self.most = max(self.most, self._asked)
        async with asyncio.timeout(30), self._all_are_here:
            self._asked -= 1
        if made.topic == "refused":
            raise InvalidRequest("no such setting")
        self.wishes.append(("make", made.topic))

    async def remove_topic(self, topic_id: UUID) -> None:
        self.wishes.append(("remove", topic_id))


def _topic(name: str) -> act.MakeTopic:
    return act.MakeTopic(name, name, 1, 1, {})


def _observed() -> Observed:
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    return Observed("data", "2013-01-01T00:00:00Z", Seen("main", "uid-of-main", spec, StorageClusterStatus()))


async def test_topics_of_a_pass_are_made_side_by_side_and_one_that_is_refused_delays_no_other() -> None:
    names = [*(f"topic-{number}" for number in range(3 * AT_ONCE - 1)), "refused"]
    requests = TogetherRequests(AT_ONCE)
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as client:  # asked for nothing
        made = act.Plan(tuple(_topic(name) for name in names), {}, 5)
        done = await Performer(Kubernetes(client), requests).perform(_observed(), made)

    assert {name for _, name in requests.wishes} == set(names) - {"refused"}
    assert [str(error) for error in done.refused] == ["no such setting"] and not done.failed
    assert requests.most == AT_ONCE


async def test_what_is_no_topic_keeps_its_order_and_comes_first() -> None:
    requests = TogetherRequests(2)
    one, other = act.EndMount("tier/1"), act.EndMount("tier/2")
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as client:
        made = act.Plan((one, _topic("a"), _topic("b"), other), {}, 5)
        await Performer(Kubernetes(client), requests).perform(_observed(), made)

    assert requests.wishes[:2] == [("end", "tier/1"), ("end", "tier/2")]
    assert sorted(requests.wishes[2:]) == [("make", "a"), ("make", "b")]
