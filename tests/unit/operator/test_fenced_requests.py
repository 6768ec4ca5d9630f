"""An operator that lost its lease while it was frozen changes nothing, in the meta service and in etcd as little as in
Kubernetes: what it had planned may be wrong by now."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.model.errors import Fenced
from stratalog.model.retirement import RetireMode
from stratalog_operator.apply.perform import Performer
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from support.meta_requests import RecordedRequests
from support.noted_kubernetes import NotedKubernetes

PLANNED: tuple[act.Action, ...] = (
    act.RemoveTopic("flights", UUID(int=1)),
    act.AskRetire(4, RetireMode.OFFLOAD, "disk-4", 1),
    act.CancelRetire(4),
    act.EndMount("tier/1"),
    act.RemoveEtcdMember("a", "its volume is lost"),
    act.PromoteEtcdMember("a"),
)


class MetaRequests(RecordedRequests):
    async def remove_topic(self, topic_id: UUID) -> None:
        self.wishes.append(("remove", topic_id))


class EtcdRequests:
    def __init__(self) -> None:
        self.wishes: list[str] = []

    async def remove(self, member_id: str) -> None:
        self.wishes.append(member_id)

    async def add(self, peer_url: str) -> None:
        self.wishes.append(peer_url)

    async def promote(self, member_id: str) -> None:
        self.wishes.append(member_id)


@pytest.mark.fault("operator-frozen-middle-pass")
@pytest.mark.parametrize("is_held", [True, False])
async def test_without_the_lease_neither_the_meta_service_nor_etcd_is_asked(is_held: bool) -> None:
    kubernetes, requests, etcd = NotedKubernetes(), MetaRequests(), EtcdRequests()

    def may_write() -> None:
        if not is_held:
            raise Fenced("the lease is lost")

    kubernetes.may_write = may_write
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    seen = Observed("data", "2013-01-01T00:00:00Z", Seen("main", "uid-of-main", spec, StorageClusterStatus()))
    done = await Performer(kubernetes, requests, etcd=etcd).perform(seen, act.Plan(PLANNED, {}, 5))

    assert (bool(requests.wishes), bool(etcd.wishes)) == (is_held, is_held)
    assert done.done == (len(PLANNED) if is_held else 0)
    assert {type(error) for error in done.failed} == (set() if is_held else {Fenced})
