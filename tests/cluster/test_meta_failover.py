"""Three instances of the meta service over a real etcd: the leader is killed, paused, stopped, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.metadata import ChangeSet, Heartbeat, Life, NodeInfo
from support.etcd_server import EtcdServers
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually

pytestmark = pytest.mark.real_etcd
LEADS = "stratalog_meta_leader_is_leading"
NODE = NodeInfo(1, "disk-1", "host", 9092)
PATIENT = RetryPolicy(attempts=400, attempt_s=2.0, first_pause_s=0.01, longest_pause_s=0.2, silence_s=4.0)


@pytest.fixture
async def client(three_metas: list[MetaProcess]) -> AsyncIterator[HttpMetaClient]:
    client = HttpMetaClient(",".join(meta.url for meta in three_metas), PATIENT)
    yield client
    await client.close()


async def leader_of(metas: list[MetaProcess]) -> MetaProcess:
    """The one that leads, of those that answer."""
    leading: list[MetaProcess] = []

    def is_one() -> bool:
        leading[:] = [meta for meta in metas if meta.is_running and meta.metric(LEADS) == 1]
        return len(leading) == 1

    await eventually(is_one, timeout=30)
    return leading[0]


class Follower:
    """Watches from the beginning, as a node does, and never asks for a snapshot."""

    def __init__(self, client: HttpMetaClient) -> None:
        self.seen: list[ChangeSet] = []
        self._task = asyncio.ensure_future(self._follow(client))

    async def _follow(self, client: HttpMetaClient) -> None:
        async for change_set in client.watch(0):
            self.seen.append(change_set)

    async def caught_up(self, version: int) -> None:
        await eventually(lambda: self._task.done() or (self.seen and self.seen[-1].version >= version), timeout=30)
        assert not self._task.done(), f"the watch ended: {self._task.exception()}"
        assert [one.version for one in self.seen] == list(range(1, self.seen[-1].version + 1)), "none missed or twice"

    def stop(self) -> None:
        self._task.cancel()


class Writer:
    """Makes topics until it is stopped, and remembers which were answered."""

    def __init__(self, client: HttpMetaClient) -> None:
        self.answered: list[str] = []
        self.unknown: list[str] = []
        self._is_stopping = False
        self._task = asyncio.ensure_future(self._write(client))

    async def _write(self, client: HttpMetaClient) -> None:
        number = 0
        while not self._is_stopping:
            name, number = f"topic-{number}", number + 1
            try:
                await client.perform(CreateTopic(name, 1, 1, {}))
                self.answered.append(name)
            except OutcomeUnknown:
                self.unknown.append(name)
            except Unavailable:
                pass

    async def wrote_more(self, count: int = 10) -> None:
        before = len(self.answered)
        await eventually(lambda: self._task.done() or len(self.answered) >= before + count, timeout=60)
        assert not self._task.done(), f"writing ended: {self._task.exception()!r}"

    async def stop(self) -> None:
        self._is_stopping = True
        await self._task


class Producing:
    """A client that writes to a topic with two copies, acks=all, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic("flights", 2, 2)]).values():
            made.result(30)
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._acknowledged = 0
        self._failed: list[object] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            self._producer.produce("flights", b"x" * 100, on_delivery=self._told)
            self._producer.poll(0.005)

    def _told(self, error: object, _: object) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failed.append(error)

    async def acknowledged_more(self) -> None:
        before = self._acknowledged
        await eventually(lambda: self._acknowledged > before + 20, timeout=30)

    def stop(self) -> list[object]:
        """What failed."""
        self._is_stopping = True
        self._thread.join()
        assert self._producer.flush(30) == 0
        return self._failed


async def check(client: HttpMetaClient, writer: Writer, follower: Follower) -> None:
    await writer.stop()
    snapshot = await client.snapshot()
    names = {topic.name for topic in snapshot.topics}
    assert set(writer.answered) <= names, "what was answered is there"
    assert names <= {*writer.answered, *writer.unknown}, "and nothing that was refused"
    await follower.caught_up(snapshot.version)
    follower.stop()


@pytest.mark.fault("meta-service-leading-process")
async def test_two_leaders_killed_one_after_the_other_lose_nothing(
    client: HttpMetaClient, three_metas: list[MetaProcess]
) -> None:
    await client.perform(RegisterNode(NODE))
    writer, follower = Writer(client), Follower(client)
    for _ in range(2):
        await writer.wrote_more()
        killed = await leader_of(three_metas)
        killed.kill()
        await writer.wrote_more()
        assert await leader_of(three_metas) is not killed
        killed.start()
    await check(client, writer, follower)


@pytest.mark.fault("meta-service-leading-process")
async def test_a_paused_leader_no_longer_leads_when_it_wakes_up(
    client: HttpMetaClient, three_metas: list[MetaProcess]
) -> None:
    await client.perform(RegisterNode(NODE))
    writer, follower = Writer(client), Follower(client)
    await writer.wrote_more()
    paused = await leader_of(three_metas)
    others = [meta for meta in three_metas if meta is not paused]
    paused.pause()
    assert await leader_of(others) in others
    await writer.wrote_more()
    paused.resume()
    direct = HttpMetaClient(paused.url, PATIENT)
    assert (await direct.read_version()) >= follower.seen[-1].version, "it sends readers to the one that leads"
    await direct.close()
    await check(client, writer, follower)


@pytest.mark.fault("meta-service-leading-process")
async def test_a_leader_that_stops_in_order_hands_over_at_once(
    client: HttpMetaClient, three_metas: list[MetaProcess]
) -> None:
    await client.perform(RegisterNode(NODE))
    writer, follower = Writer(client), Follower(client)
    await writer.wrote_more()
    leader = await leader_of(three_metas)
    await asyncio.to_thread(leader.stop)
    await writer.wrote_more()
    await check(client, writer, follower)
    # It answered the requests that it had read. A connection that it had not read yet was closed, as often as the
    # client reconnected while it stopped: the client cannot learn the outcome of those, so `check` takes each as made
    # or not made.
    assert sum(meta.metric("stratalog_meta_leader_won_total") for meta in three_metas if meta.is_running) == 1


async def test_one_member_of_etcd_less_ends_nothing(
    client: HttpMetaClient, three_metas: list[MetaProcess], etcd_of_three: EtcdServers
) -> None:
    await client.perform(RegisterNode(NODE))
    writer, follower = Writer(client), Follower(client)
    await writer.wrote_more()
    await asyncio.to_thread(etcd_of_three.kill, await asyncio.to_thread(etcd_of_three.leader))
    await writer.wrote_more()
    await check(client, writer, follower)


@pytest.mark.fault("node-sends-heartbeats-meta")
@pytest.mark.parametrize("three_metas", [2_000], indirect=True)
async def test_a_node_that_keeps_sending_heartbeats_outlives_the_death_of_the_leader(
    client: HttpMetaClient, three_metas: list[MetaProcess]
) -> None:
    registration = await client.perform(RegisterNode(NODE))
    beat = Heartbeat(Life(1, registration.node_epoch))
    heard = 0

    async def send() -> None:
        nonlocal heard
        while True:
            try:
                await client.heartbeat(beat)
                heard += 1
            except Unavailable:
                pass
            await asyncio.sleep(0.2)

    sending = asyncio.ensure_future(send())
    killed = await leader_of(three_metas)
    killed.kill()
    leader = await leader_of([meta for meta in three_metas if meta is not killed])
    before = heard
    await eventually(lambda: heard > before + 15, timeout=30)
    assert leader.metric("stratalog_meta_lives_lost_total") == 0
    assert (await client.snapshot()).nodes[0].is_alive
    sending.cancel()


# One of 2 s may end on a busy machine: then the recovery of what the node leads waits for the next leader.
@pytest.mark.fault("leader-change-durable-dies", "meta-service-leading-process-killed")
@pytest.mark.parametrize("three_metas", [6_000], indirect=True)
async def test_nodes_live_through_a_failover_and_read_no_metadata_twice(
    client: HttpMetaClient, three_metas: list[MetaProcess], tmp_path: Path
) -> None:
    """Each node follows the next leader from where it was: no whole snapshot, however many nodes there are."""
    urls = ",".join(meta.url for meta in three_metas)
    nodes = [
        NodeProcess(
            tmp_path / f"node-{number}", verb=("node", "start"), arguments=("--meta", urls, "--id", str(number))
        )
        for number in (1, 2)
    ]
    try:
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
        followed = "stratalog_catalog_change_sets_total"
        begun, version_before = [node.metrics()[followed] for node in nodes], await client.read_version()
        writer, producing = Writer(client), Producing(",".join(node.bootstrap for node in nodes))
        for _ in range(2):
            await writer.wrote_more()
            await producing.acknowledged_more()
            killed = await leader_of(three_metas)
            killed.kill()
            await producing.acknowledged_more()
            assert not [meta for meta in three_metas if meta.is_running and meta.metric(LEADS)], "nobody leads yet"
            await writer.wrote_more()
            await asyncio.to_thread(killed.start)
        await writer.stop()
        assert await asyncio.to_thread(producing.stop) == [], "producers notice nothing of it"
        changes = await client.read_version() - version_before
        first = [node.metrics() for node in nodes]

        def have_followed() -> bool:
            return all(node.metrics()[followed] - known >= changes for node, known in zip(nodes, begun, strict=True))

        await eventually(have_followed, timeout=60)
        assert [node.metrics()["stratalog_catalog_reloads_total"] for node in nodes] == [0, 0], first
        assert all(node.is_alive for node in (await client.snapshot()).nodes), "nobody lost its lease by it"
        for node in nodes:
            node.stop()
    finally:
        for node in nodes:
            node.kill()
