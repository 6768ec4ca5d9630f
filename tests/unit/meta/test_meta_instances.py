"""Several instances and one leader: the others redirect to it, and a watch outlives its leader."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.problems import CONTENT_TYPE, to_problem
from stratalog.meta_api.wire import PROBLEM
from stratalog.model.commands.table_commands import AllocateProducerIds, CreateTopic, RegisterNode
from stratalog.model.errors import NotFound, NotLeader, OutcomeUnknown
from stratalog.model.metadata import ChangeSet, NodeInfo
from support.elections import Instances, instances
from support.waiting import eventually

NODE = NodeInfo(1, "disk-1", "host", 9092)
PATIENT = RetryPolicy(attempts=200, attempt_s=5.0, first_pause_s=0.001, longest_pause_s=0.02, silence_s=5.0)


async def lead(running: Instances, number: int) -> None:
    running.elect(number)
    await eventually(lambda: running.leads(number))


async def test_who_does_not_lead_sends_every_request_to_the_one_that_does() -> None:
    async with instances(3) as running:
        await lead(running, 1)
        leader = running.servers[1].address
        async with aiohttp.ClientSession(running.servers[0].address) as http:
            for path in ("/v1/cluster", "/v1/snapshot", "/v1/watch?after=0"):
                async with http.get(path, allow_redirects=False) as response:
                    assert (response.status, response.headers["Location"]) == (307, leader + path)
            body = {"node": {"node_id": 1, "storage_id": "a", "host": "h", "port": 1}}
            # Any client of HTTP follows it, with method and body.
            async with http.post("/v1/commands/register-node", json=body) as response:
                assert response.status == 200 and (await response.json())["node_epoch"] == 1
            async with http.get("/readyz") as response:
                assert response.status == 200, "it serves, by saying where"


async def test_without_a_leader_nothing_is_done_and_readiness_says_why() -> None:
    async with instances(1) as running:
        client = HttpMetaClient(running.urls, RetryPolicy(attempts=2, first_pause_s=0.001))
        with pytest.raises(NotLeader, match="no instance leads"):
            await client.perform(AllocateProducerIds(1))
        async with aiohttp.ClientSession(running.servers[0].address) as http, http.get("/readyz") as response:
            assert response.status == 503 and "no instance leads" in await response.text()
        await client.close()


async def test_a_client_finds_the_leader_and_follows_it() -> None:
    async with instances(3) as running:
        client = HttpMetaClient(running.urls, PATIENT)
        first_answer = asyncio.ensure_future(client.perform(AllocateProducerIds(1)))
        await lead(running, 2)
        assert (await first_answer).first == 1, "it waited until somebody led"
        await lead(running, 0)
        assert (await client.perform(AllocateProducerIds(1))).first == 2
        await client.close()


async def test_instances_that_send_each_other_around_end_in_words_and_not_in_a_circle() -> None:
    async with instances(2) as running:
        await lead(running, 0)
        running.election.elect(None)
        running.election.seen_leader = running.servers[1].address.removeprefix("http://")
        await eventually(lambda: not running.leads(0))
        client = HttpMetaClient(running.urls, RetryPolicy(attempts=3, first_pause_s=0.001))
        with pytest.raises(NotLeader):
            await client.perform(AllocateProducerIds(1))
        await client.close()


@pytest.mark.fault("leader-change-durable-dies")
async def test_a_watch_continues_under_the_next_leader_from_its_version() -> None:
    """The new leader publishes changes that the old one made durable but did not publish; no snapshot is taken."""
    async with instances(2) as running:
        await lead(running, 0)
        client = HttpMetaClient(running.urls, PATIENT)
        await client.perform(RegisterNode(NODE))
        seen: list[ChangeSet] = []

        async def follow() -> None:
            async for change_set in client.watch(0):
                seen.append(change_set)

        following = asyncio.ensure_future(follow())
        for number in range(6):
            await lead(running, number % 2)
            await client.perform(CreateTopic(f"topic-{number}", 2, 1, {}))
        await eventually(lambda: len(seen) == 7)
        assert [one.version for one in seen] == list(range(1, 8)), "in order, none twice, none missed"
        assert not following.done()
        following.cancel()
        await client.close()


async def test_a_watcher_that_stopped_reading_before_the_failover_learns_what_it_missed() -> None:
    async with instances(2) as running:
        await lead(running, 0)
        client = HttpMetaClient(running.urls, PATIENT)
        await client.perform(RegisterNode(NODE))
        for number in range(5):
            await client.perform(CreateTopic(f"topic-{number}", 1, 1, {}))
        await lead(running, 1)
        watch = client.watch(2)
        assert [(await anext(watch)).version for _ in range(4)] == [3, 4, 5, 6]
        with pytest.raises(NotFound, match="ahead"):
            await anext(client.watch(99))
        await client.close()


async def test_what_a_deposed_leader_still_knows_is_not_read_from_it() -> None:
    async with instances(2) as running:
        await lead(running, 0)
        first = running.instances[0]
        assert first.leading() is first.leading()
        running.election.elected = "another"  # the instance does not know yet: its task has not run
        with pytest.raises(NotLeader):
            first.leading()


@pytest.mark.fault("leading-meta-service-cut")
async def test_a_leader_that_cannot_tell_whether_it_leads_does_not_say_so() -> None:
    async with instances(1) as running:
        await lead(running, 0)
        running.election.is_in_doubt = True  # its lease is over by its own clock, and etcd does not answer
        assert not running.instances[0].is_leading
        running.election.is_in_doubt = False
        assert running.instances[0].is_leading


async def test_an_instance_that_stops_gives_the_lead_up_and_answers_what_was_asked() -> None:
    async with instances(2) as running:
        await lead(running, 0)
        client = HttpMetaClient(running.urls, PATIENT)
        asked = [asyncio.ensure_future(client.perform(AllocateProducerIds(1))) for _ in range(20)]
        await running.servers[0].close()
        await running.instances[0].close()
        await lead(running, 1)
        firsts = [(await one).first for one in asked]
        assert len(set(firsts)) == 20, "each once"
        await client.close()


class HungLeader:
    """A server that answers nothing until it learns the leader, and then does not answer earlier requests."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.asked = 0
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.leader is None:
            if request.path == "/v1/watch":
                response = web.StreamResponse()
                await response.prepare(request)
            await asyncio.Event().wait()
        problem = to_problem(NotLeader("another leads", self.leader))
        return web.Response(status=307, body=PROBLEM.write(problem), content_type=CONTENT_TYPE)

    async def close(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()


async def test_what_hangs_at_a_leader_that_was_is_asked_again_once_another_is_known_to_lead() -> None:
    hung = HungLeader()
    await hung.start()
    async with instances(1) as running:
        await lead(running, 0)
        forever = RetryPolicy(attempts=50, attempt_s=3_600.0, silence_s=3_600.0, first_pause_s=0.001)
        client = HttpMetaClient(f"{hung.address},{running.urls}", forever)
        idempotent = asyncio.ensure_future(client.perform(AllocateProducerIds(1)))
        once = asyncio.ensure_future(client.perform(CreateTopic("a", 1, 1, {})))
        watch = client.watch(0)
        watching = asyncio.ensure_future(anext(watch))
        await eventually(lambda: hung.asked == 3)
        hung.leader = running.servers[0].address
        assert set(await asyncio.gather(client.read_version(), client.read_version())) == {0}, "each learns who leads"
        assert (await idempotent).first == 1
        with pytest.raises(OutcomeUnknown, match="before another instance led"):
            await once
        await client.perform(RegisterNode(NODE))
        assert (await watching).version == 1
        await client.close()
    await hung.close()
