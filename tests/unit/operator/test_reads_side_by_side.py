"""What a pass reads is asked for at once, not one after the other: of Kubernetes, and of the meta service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import NotFound, StratalogError, Unavailable
from stratalog.model.views.outline import Outline, ShardHealth, Sums
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.rights_view import RightsView
from stratalog.model.views.status_page import Overview
from stratalog_operator.kube.client import path_of
from stratalog_operator.kube.together import together
from stratalog_operator.observe.meta_service import HttpMetaObserver
from stratalog_operator.observe.objects import DEPENDENTS, observe, observe_orphans
from stratalog_operator.plan.observed import SeenMeta
from support.noted_kubernetes import NotedKubernetes

NOW = "2013-01-01T00:00:00Z"


class NoMeta:
    async def observe(self) -> SeenMeta:
        raise AssertionError("without a pod of it nobody is asked")


def _kubernetes() -> NotedKubernetes:
    made = NotedKubernetes()
    made.answers_to[path_of("StorageCluster", "data", "main")] = {
        "metadata": {"name": "main", "uid": "u"},
        "spec": {"meta": {"etcd": {}}},
    }
    return made


async def test_all_that_a_pass_reads_of_kubernetes_is_asked_for_at_once() -> None:
    kubernetes = _kubernetes()
    seen = await observe(kubernetes, "data", "main", NoMeta(), NOW, "1.2.3")

    assert seen.cluster.name == "main" and seen.operator_version == "1.2.3"
    assert kubernetes.most == len(kubernetes.requests) == len(set(kubernetes.requests)) == 16


async def test_what_a_cluster_left_behind_is_asked_for_at_once() -> None:
    kubernetes = _kubernetes()
    await observe_orphans(kubernetes, "data", "main")

    assert kubernetes.most == len(kubernetes.requests) == len(DEPENDENTS) + 1


class _Client(HttpMetaClient):
    """Answers only when all that may be asked for at the same time is."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.together = asyncio.Barrier(4)
        self.is_identified = False

    async def _meet(self) -> None:
        assert self.is_identified, "asked before it is known which cluster answers"
        async with asyncio.timeout(30):
            await self.together.wait()

    async def read_cluster_id(self) -> str:
        self.is_identified = True
        return "cluster-1"

    async def retirements(self) -> tuple[RetirementStatus, ...]:
        await self._meet()
        return ()

    async def overview(self) -> Overview:
        await self._meet()
        raise Unavailable("it has just begun to lead")

    async def rights(self, known: int | None = None) -> RightsView:
        await self._meet()
        return RightsView(1)

    async def outline(self) -> Outline:
        await self._meet()
        return Outline("cluster-1", 1, (), (), (), ShardHealth((), 0, (), ()), Sums((), (), ()))


async def test_the_meta_service_is_asked_for_everything_at_once_when_it_has_said_whose_it_is() -> None:
    seen = await HttpMetaObserver(_Client()).observe()

    assert (seen.cluster_id, seen.nodes, seen.store_away_seconds) == ("cluster-1", (), None)


@pytest.mark.parametrize("error", [NotFound("gone"), Unavailable("nobody answers")])
async def test_what_fails_among_others_is_reported_as_itself_and_cuts_them_off(error: StratalogError) -> None:
    ended: list[Any] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    with pytest.raises(type(error), match=str(error)):
        async with together() as asked:
            asked.create_task(waits())
            asked.create_task(fails())

    assert ended == ["waits"]
