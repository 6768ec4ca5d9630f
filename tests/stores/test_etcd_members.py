"""One of three members of etcd is killed, hangs or is lost: writes continue, each once and in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.topic import Topic
from stratalog_meta import MetaService
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdClient, EtcdRetryPolicy
from stratalog_meta.stores.etcd.layout import RECORDS
from stratalog_meta.stores.etcd.leadership import LEASE_S, EtcdLeadership
from stratalog_meta.stores.etcd.store import EtcdStore
from stratalog_meta.stores.meta_store import WriteRefused
from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.etcd_stores import QUICK, leading
from support.meta_worlds import HandClock, MetaWorld
from support.waiting import eventually

pytestmark = [pytest.mark.real_etcd, pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    with etcd_servers(tmp_path_factory.mktemp("etcd"), 3) as servers:
        yield servers


@pytest.fixture
def prefix() -> bytes:
    return f"/{uuid4().hex}/".encode()


@asynccontextmanager
async def meta_service(members: EtcdServers, prefix: bytes) -> AsyncIterator[tuple[MetaWorld, EtcdLeadership]]:
    """A service with the patience of the product."""
    client = EtcdClient(members.endpoints)
    async with leading(members.endpoints, prefix, client=client, lease_s=LEASE_S) as (_, leadership, store):
        await store.close()
        clock = HandClock()
        service = MetaService(store, clock)
        await service.start()
        try:
            yield MetaWorld(service, service, clock, None), leadership
        finally:
            await service.close()


async def written_through(members: EtcdServers, prefix: bytes, fault: Callable[[], None]) -> None:
    """Topics are made one after the other while the fault happens: none is refused, lost or made twice."""
    async with meta_service(members, prefix) as (world, leadership):
        await world.node()
        made: list[str] = []

        async def make(count: int) -> None:
            for _ in range(count):
                made.append((await world.topic(f"topic-{len(made)}")).name)

        await make(5)
        making = asyncio.ensure_future(make(40))
        await eventually(lambda: len(made) > 10)
        await asyncio.to_thread(fault)
        await making
        await eventually(lambda: leadership.is_leading)
        assert not leadership.lost.is_set(), "the lead outlives an election of etcd"
        before = await world.client.snapshot()
        assert before.version == 1 + len(made)
    async with meta_service(members, prefix) as (world, _):
        after = await world.client.snapshot()
        assert after.version == before.version and {topic.name for topic in after.topics} == set(made)


@pytest.mark.fault("etcd-leader-killed-hangs")
async def test_writing_continues_when_etcds_leader_is_killed(members: EtcdServers, prefix: bytes) -> None:
    leader = members.leader()
    try:
        await written_through(members, prefix, lambda: members.kill(leader))
    finally:
        members.start(leader)
        members.wait_until_well()


@pytest.mark.fault("etcd-leader-killed-hangs")
async def test_writing_continues_when_etcds_leader_hangs(members: EtcdServers, prefix: bytes) -> None:
    leader = members.leader()
    try:
        await written_through(members, prefix, lambda: members.freeze(leader))
    finally:
        members.thaw(leader)
        members.wait_until_well()


@pytest.mark.fault("etcd-leader-killed-hangs")
async def test_writing_continues_without_any_one_of_three_members(members: EtcdServers, prefix: bytes) -> None:
    """The sticky one among them."""
    lost = next(member for member in range(3) if member != members.leader())
    try:
        await written_through(members, prefix, lambda: members.kill(lost))
    finally:
        members.start(lost)
        members.wait_until_well()


@pytest.mark.fault("etcd-majority")
async def test_without_a_majority_nothing_is_promised_and_one_leads_again_when_it_is_back(
    members: EtcdServers, prefix: bytes
) -> None:
    impatient = EtcdClient(members.endpoints, policy=EtcdRetryPolicy(attempt_s=0.2, deadline_s=0.8))
    async with leading(members.endpoints, prefix, client=impatient, lease_s=1) as (_, leadership, store):
        service = MetaService(store, HandClock())
        await store.close()
        await service.start()
        world = MetaWorld(service, service, HandClock(), None)
        await world.node()
        members.freeze(0)
        members.freeze(1)
        try:
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await world.topic("unanswered")
            await eventually(leadership.lost.is_set)
            with pytest.raises(Unavailable):
                await world.topic("refused")
            assert (await world.client.snapshot()).topics == (), "reading continues"
        finally:
            members.thaw(0)
            members.thaw(1)
        await service.close()
    async with meta_service(members, prefix) as (world, _):
        found = {topic.name for topic in (await world.client.snapshot()).topics}
        assert found <= {"unanswered"}
        await world.topic("next")


@pytest.mark.fault("deposed-meta-service-continues")
async def test_what_a_deposed_leader_sent_to_a_member_that_hung_is_refused_when_it_wakes(
    members: EtcdServers, prefix: bytes
) -> None:
    """The write waits in the member's socket while another instance comes to lead: only the comparison can stop it."""
    hung = next(member for member in range(3) if member != members.leader())
    others = [endpoint for index, endpoint in enumerate(members.endpoints) if index != hung]
    client = EtcdClient([members.endpoints[hung]], policy=EtcdRetryPolicy(attempt_s=20.0, deadline_s=20.0))
    old = EtcdLeadership(client, prefix, "127.0.0.1:1", lease_s=2)
    store = EtcdStore(client, prefix, old)
    await old.campaign()
    service = MetaService(store, HandClock())
    await service.start()
    world = MetaWorld(service, service, HandClock(), None)
    await world.node()
    members.freeze(hung)
    try:
        late = asyncio.ensure_future(world.topic("late"))
        async with leading(others, prefix) as (_, newer, store_of_newer):
            assert newer.is_leading
            members.thaw(hung)
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await late
            await store_of_newer.close()
            assert not [record for record in await store_of_newer.load() if isinstance(record, Topic)]
    finally:
        members.thaw(hung)
    with pytest.raises((WriteRefused, Unavailable)):
        await store.write([[]])
    await service.close()
    await old.resign()
    await client.close()


async def test_no_key_but_a_record_lies_among_the_records(members: EtcdServers, prefix: bytes) -> None:
    """A member that is asked directly shows what the page of the formats says."""
    async with meta_service(members, prefix) as (world, _):
        await world.node()
        await world.topic("wide", shard_count=300)
    client = EtcdClient(members.endpoints, policy=QUICK)
    answer = await client.range(rpc.RangeRequest(key=prefix, range_end=prefix[:-1] + b"0"))
    places = [pair.key.removeprefix(prefix) for pair in answer.kvs]
    assert places[0] == b"head/turn", "the leader key went with its lease"
    assert all(place.startswith(RECORDS) for place in places[1:]) and len(places) > 600
    await client.close()
