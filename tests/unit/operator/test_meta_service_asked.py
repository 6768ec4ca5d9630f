"""The operator's two listeners to a real meta service: what it sees there, and what it wishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import CreateTopic, ProposeIsr, RegisterNode
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Node, NodeInfo
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Wait, WaitReason
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog_meta.api import server
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.apply.meta_service import HttpMetaRequests
from stratalog_operator.apply.perform import process_settings
from stratalog_operator.observe.meta_service import HttpMetaObserver, records
from stratalog_operator.plan import actions as act
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.specs.objects import Cluster
from support.meta_worlds import HandClock
from support.waiting import eventually


@asynccontextmanager
async def _service(nodes: int) -> AsyncIterator[tuple[MetaService, HttpMetaClient]]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    served = MetaServer(service)
    client = HttpMetaClient(await served.start("127.0.0.1", 0))
    try:
        for node_id in range(1, nodes + 1):
            await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        yield service, client
    finally:
        await client.close()
        await served.close()
        await service.close()


async def test_members_and_wishes_are_seen_at_once() -> None:
    """Also before the leader of the service has looked at them."""
    async with _service(3) as (service, client):
        observer, requests = HttpMetaObserver(client), HttpMetaRequests(client)
        for _ in range(2):
            await requests.retire(3, RetireMode.VOLUME, None, None)
        seen = await observer.observe()
        await requests.cancel(3)
        after = await observer.observe()

    assert seen.cluster_id == service.cluster_id
    assert [node.storage_id for node in seen.nodes] == ["disk-1", "disk-2", "disk-3"]
    assert [(one.node_id, one.retirement.mode) for one in seen.retirements] == [(3, RetireMode.VOLUME)]
    assert after.retirements == ()


def test_words_of_a_retirement_are_never_of_another_reason_than_its_own() -> None:
    """Members and retirements are asked for one after the other, and something may change in between."""
    was = Wait(WaitReason.INSUFFICIENT_CAPACITY, "nobody has room", since_ms=1)
    told = Retirement("disk-3", RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 0, 0, was)
    now = replace(told, wait=Wait(WaitReason.REPLICATION_FACTOR, "2 nodes stay", since_ms=2))
    goes_on = replace(told, step=RetireStep.CORDON, wait=None)
    status = RetirementStatus(3, True, told, 4, 100, 0, -1, words_of(told, 4, 100, 0, -1))

    def words(record: Retirement) -> str:
        (one,) = records([Node(3, "disk-3", "host", 9092, retirement=record)], [status])
        return one.words

    assert words(told) == status.words
    assert words(now) == "waits (ReplicationFactor): 2 nodes stay"
    assert words(goes_on) == "nothing new is placed on it"


async def test_what_is_there_no_more_is_no_fault_and_a_wrong_disk_is() -> None:
    async with _service(2) as (_, client):
        requests = HttpMetaRequests(client)
        await requests.cancel(7)
        await requests.end_mount("tier/7")
        with pytest.raises(InvalidRequest):
            await requests.retire(2, RetireMode.OFFLOAD, "another-disk", None)


async def test_a_topic_that_never_has_enough_in_sync_delays_no_other() -> None:
    async with _service(2) as (service, client):
        await service.perform(CreateTopic("hopeless", 1, 2, {"min.insync.replicas": "3"}))
        seen = await HttpMetaObserver(client).observe()

    assert seen.unwell == ()


@pytest.mark.fault("topic-inherits-cluster-min-insync-replicas")
async def test_a_topic_that_does_not_say_how_many_must_be_in_sync_has_the_default_of_its_cluster() -> None:
    """A roll must not take the last replica of a topic that inherits `min.insync.replicas`."""
    async with _service(3) as (service, client):
        topic = await service.perform(CreateTopic("orders", 1, 3, {}))
        shard = await service.shard(ShardKey(topic.topic_id, 0))
        active = shard.segments[-1]
        assert active.leader is not None
        await service.perform(ProposeIsr(active.key, (active.leader,), active.isr_version))
        unsaid = await HttpMetaObserver(client).observe()
        service.min_in_sync = 2
        seen = await HttpMetaObserver(client).observe()

    assert len(seen.unwell) == 1 and "min.insync.replicas is 2" in seen.unwell[0]
    assert unsaid.unwell == () and len(unsaid.behind) == 2


async def test_a_topic_without_a_number_of_shards_has_as_many_as_the_processes_are_set_to() -> None:
    spec = {"meta": {"etcd": {}}, "config": {"num.partitions": "5"}}
    process = process_settings(Cluster("main", "data", "uid", StorageClusterSpec.model_validate(spec)))
    async with _service(3) as (_, client):
        observer, requests = HttpMetaObserver(client), HttpMetaRequests(client)
        await requests.make_topic(act.MakeTopic("orders", "orders", None, 3, {}), process)
        made = (await observer.observe()).topic("orders")

    assert made is not None and made.shard_count == 5


async def test_topics_are_made_changed_and_removed_and_what_repeats_is_no_fault() -> None:
    process = process_settings(
        Cluster("main", "data", "uid", StorageClusterSpec.model_validate({"meta": {"etcd": {}}}))
    )
    async with _service(3) as (_, client):
        observer, requests = HttpMetaObserver(client), HttpMetaRequests(client)
        for _ in range(2):
            await requests.make_topic(act.MakeTopic("orders", "orders", 2, 3, {"retention.ms": "5"}), process)
        made = (await observer.observe()).topic("orders")
        assert made is not None
        wanted = {"retention.ms": "6"}
        await requests.change_topic(act.ChangeTopic("orders", made.topic_id, wanted, {"retention.ms": "5"}, 4), process)
        # The state has changed since it was observed, and the next pass sees that.
        await requests.change_topic(act.ChangeTopic("orders", made.topic_id, {}, {"retention.ms": "5"}, None), process)

        async def is_summed_up() -> bool:
            """Sums are a while old."""
            return sum(one.leaders for one in (await observer.observe()).node_sums.values()) == 4

        await eventually(is_summed_up)
        seen = await observer.observe()
        changed = seen.topic("orders")
        with pytest.raises(InvalidRequest, match="no-such"):
            await requests.make_topic(act.MakeTopic("b", "b", 1, 1, {"no-such": "5"}), process)
        await requests.make_mount(act.MakeMount("january", ("orders",), 0, 1, 0))  # nothing is sealed yet
        for _ in range(2):
            await requests.remove_topic(made.topic_id)
        gone = await observer.observe()

    assert (made.shard_count, made.replication_factor, dict(made.settings)) == (2, 3, {"retention.ms": "5"})
    assert changed is not None and (changed.shard_count, dict(changed.settings)) == (4, wanted)
    assert seen.topic_sums[made.topic_id].oldest_offset == 0
    assert gone.topics == () and gone.mounts == ()


async def test_a_service_that_is_older_than_the_operator_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what it says allows the roll by which it becomes a newer one."""
    routes = tuple(route for route in server.ROUTES if route.path != "/v1/outline")
    monkeypatch.setattr(server, "ROUTES", routes)
    async with _service(3) as (service, client):
        await service.perform(CreateTopic("orders", 2, 3, {}))
        seen = await HttpMetaObserver(client).observe()

    assert [topic.name for topic in seen.topics] == ["orders"] and len(seen.nodes) == 3
    assert sum(one.leaders for one in seen.node_sums.values()) == 2


async def test_a_service_that_is_away_is_an_error_and_not_an_empty_cluster() -> None:
    gone = HttpMetaClient("http://127.0.0.1:9")
    try:
        with pytest.raises(Unavailable):
            await HttpMetaObserver(gone).observe()
    finally:
        await gone.close()
