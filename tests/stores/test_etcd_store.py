"""The meta store over a real etcd: what is written once stays once, by one leader, whatever is lost in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

from stratalog.machines.table.records import PutHeader, PutLock, PutSeal, PutSegmentHead, TableHeader, TableWrite
from stratalog.model.commands.table_commands import CommitParts
from stratalog.model.errors import (
    Conflict,
    Corrupt,
    DiskFull,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    Unavailable,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, PartCommit
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog_cli.services.meta_rebuild import open_target
from stratalog_meta import MetaService
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.address import EtcdAddress
from stratalog_meta.stores.etcd.client import EtcdClient, EtcdRefused
from stratalog_meta.stores.etcd.layout import LONG_VALUES, REDO, REDO_PARTS, TURN, numbered
from stratalog_meta.stores.etcd.leadership import EtcdLeadership
from stratalog_meta.stores.etcd.lease_keeper import LeaseKeeper
from stratalog_meta.stores.etcd.store import EtcdStore
from stratalog_meta.stores.meta_store import WriteRefused
from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.etcd_stores import QUICK, leading
from support.failing_etcd import LossyClient, MortalClient
from support.meta_worlds import HandClock, MetaWorld, part
from support.waiting import eventually

pytestmark = [pytest.mark.real_etcd, pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)]
HEADER = TableHeader("cluster-1", 1, 1)
SEGMENT = SegmentKey(uuid4(), 0, 0, 0)


@pytest.fixture
def prefix() -> bytes:
    return f"/{uuid4().hex}/".encode()


def lock(number: int, holder: str = "somebody") -> PutLock:
    return PutLock(Lock(f"lock {number:05d}", holder, 1, 1))


def command(number: int) -> list[TableWrite]:
    """A small one."""
    return [PutHeader(TableHeader("cluster-1", number, 1)), lock(number)]


def names(records: Sequence[object]) -> set[str]:
    return {record.name for record in records if isinstance(record, Lock)}


def version(records: Sequence[object]) -> int:
    (header,) = (record for record in records if isinstance(record, TableHeader))
    return header.version


async def depose(leadership: EtcdLeadership, endpoints: Sequence[str]) -> None:
    """What the end of its lease does, at once and without its knowledge."""
    client = EtcdClient(endpoints, policy=QUICK)
    await client.revoke_lease(leadership._lease, 5.0)
    await client.close()


async def stored(endpoints: Sequence[str], prefix: bytes) -> list[Any]:
    """What the next leader finds."""
    async with leading(endpoints, prefix) as (_, _, store):
        await store.close()
        return list(await store.load())


@asynccontextmanager
async def service_over(store: EtcdStore) -> AsyncIterator[MetaWorld]:
    await store.close()
    clock = HandClock()
    service = MetaService(store, clock)
    await service.start()
    try:
        yield MetaWorld(service, service, clock, None)
    finally:
        await service.close()


# Turns and large commands -----------------------------------------------------------------------------------------
async def test_a_turn_of_many_commands_takes_few_transactions_and_a_large_command_is_whole(
    etcd: EtcdServers, prefix: bytes
) -> None:
    client = MortalClient(etcd.endpoints)
    large: list[TableWrite] = [PutHeader(TableHeader("cluster-1", 301, 1)), *map(lock, range(1_000, 1_400))]
    async with leading(etcd.endpoints, prefix, client=client) as (_, _, store):
        client.written = 0
        await store.write([command(number) for number in range(300)])
        assert client.written == 3, "300 locks and one header, 127 operations each"
        client.written = 0
        await store.write([command(300), large, command(302)])
        assert client.written == 1 + 1 + 1 + 4 + 1 + 1, (
            "before it; a part, the record, 401 operations, removal; after it"
        )
    found = await stored(etcd.endpoints, prefix)
    assert names(found) == {lock(number).lock.name for number in (*range(301), *range(1_000, 1_400), 302)}
    assert version(found) == 302


@pytest.mark.fault("leading-meta-service-killed")
@pytest.mark.parametrize("is_sent", [False, True], ids=["before it is sent", "before it is answered"])
async def test_a_leader_killed_at_any_transaction_leaves_whole_commands(
    etcd: EtcdServers, prefix: bytes, is_sent: bool
) -> None:
    """Three commands, the middle one too large for a transaction; the next leader finishes what was written down."""
    large: list[TableWrite] = [
        PutHeader(TableHeader("cluster-1", 2, 1)),
        *(lock(1_000 + n, "x" * 9_000) for n in range(200)),
    ]
    turn = [command(1), large, command(3)]
    seen: list[int] = []
    for last in range(1, 11):
        client, place = MortalClient(etcd.endpoints), prefix + f"{last}/".encode()
        async with leading(etcd.endpoints, place, client=client) as (_, leadership, store):
            await store.write([[PutHeader(TableHeader("cluster-1", 0, 1))]])
            client.dies_at(last, is_sent=is_sent)
            is_dead = True
            try:
                await store.write(turn)
                is_dead = False
            except OutcomeUnknown:
                with pytest.raises(Unavailable, match="load it first"):
                    await store.write([command(9)])
            await depose(leadership, etcd.endpoints)
        found = await stored(etcd.endpoints, place)
        reached = version(found)
        whole = {0: 0, 1: 1, 2: 201, 3: 202}[reached]
        assert len(names(found)) == whole, f"killed at {last}: half of a command is there"
        assert is_dead or reached == 3
        seen.append(reached)
    # The first command; three parts and their record; two runs of operations and the removal; the last command.
    told = [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert seen == ([*told[1:], 3] if is_sent else told), "from its record on the large command is there"
    assert await leftovers(etcd, prefix) == []


async def leftovers(etcd: EtcdServers, prefix: bytes) -> list[bytes]:
    client = EtcdClient(etcd.endpoints, policy=QUICK)
    answer = await client.range(rpc.RangeRequest(key=prefix, range_end=prefix[:-1] + b"0"))
    await client.close()
    return [pair.key for pair in answer.kvs if b"/" + REDO in pair.key or b"/" + LONG_VALUES in pair.key]


@pytest.mark.fault("leading-meta-service-killed")
async def test_a_topic_of_thousands_of_shards_and_a_bundle_of_a_thousand_commits_survive_their_leader(
    etcd: EtcdServers, prefix: bytes
) -> None:
    async with (
        leading(etcd.endpoints, prefix) as (_, _, store),
        service_over(store) as world,
    ):
        await world.node()
        topic = await world.topic("wide", shard_count=2_000)
        held = await world.lock()
        commits = [PartCommit(SegmentKey(topic.topic_id, shard, 0, 0), 0, part(0, 5)) for shard in range(1_000)]
        outcomes = await world.client.perform(CommitParts(held, tuple(commits)))
        assert all(isinstance(outcome, Segment) for outcome in outcomes)
        before = await world.client.snapshot()
    async with leading(etcd.endpoints, prefix) as (_, _, store), service_over(store) as world:
        assert await world.client.snapshot() == before


@pytest.mark.fault("value-larger-etcd-accepts")
async def test_a_value_larger_than_etcd_takes_is_cut_and_comes_back_whole(etcd: EtcdServers, prefix: bytes) -> None:
    """No such record exists today: three hundred thousand replicas."""
    seal = SealRecord(0, 0, 9, 1, 1, 100, b"\x01", NO_PRODUCERS, tuple(range(2**30, 2**30 + 300_000)), 1)
    head = Segment(SEGMENT, SegmentState.SEALED, None, (1,), (1,), 0, 1, 9, seal)
    async with leading(etcd.endpoints, prefix) as (_, _, store):
        await store.write([[PutHeader(HEADER), PutSegmentHead(head), PutSeal(SEGMENT, seal)]])
        await store.close()
        assert head in await store.load()
        assert len(await leftovers(etcd, prefix)) > 1
        small = SealRecord(0, 0, 9, 1, 1, 100, b"\x01", NO_PRODUCERS, (1,), 1)
        await store.write([[PutSeal(SEGMENT, small)]])
        assert await leftovers(etcd, prefix) == []
    assert [record.seal for record in await stored(etcd.endpoints, prefix) if isinstance(record, Segment)] == [small]


# Lost answers -----------------------------------------------------------------------------------------------------
@pytest.mark.fault("answer-etcd-lost-arrives")
async def test_lost_answers_are_read_back_and_nothing_is_written_twice(etcd: EtcdServers, prefix: bytes) -> None:
    client = LossyClient(etcd.endpoints)
    async with leading(etcd.endpoints, prefix, client=client) as (_, _, store), service_over(store) as world:
        client.is_lossy = True
        await world.node()
        for number in range(20):
            await world.topic(f"topic-{number}", shard_count=100 if number == 7 else 1)
        assert (await world.client.snapshot()).version == 21, "each happened once"
        assert client.stats.read_back > 10 and client.stats.attempts_failed > 10
        client.is_lossy = False


@pytest.mark.fault("answer-etcd-lost-arrives")
async def test_a_write_that_could_not_be_asked_about_heals_by_loading_again(
    etcd: EtcdServers, prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.01)
    client = MortalClient(etcd.endpoints)
    async with leading(etcd.endpoints, prefix, client=client) as (_, _, store), service_over(store) as world:
        await world.node()
        client.dies_at(3, is_sent=True)
        with pytest.raises(OutcomeUnknown):
            await world.topic("answer-lost", shard_count=200)
        assert world.service.why_no_changes is not None
        client.last = None
        await eventually(lambda: world.service.why_no_changes is None)
        assert client.stats.redone == 1, "a part, its record, and not all of its operations"
        await world.topic("next")
        assert [topic.name for topic in (await world.client.snapshot()).topics] == ["answer-lost", "next"]


# Leaders ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("deposed-meta-service-continues")
async def test_a_deposed_leader_writes_nothing_even_while_it_believes_that_it_leads(
    etcd: EtcdServers, prefix: bytes
) -> None:
    async with leading(etcd.endpoints, prefix) as (_, old, store):
        await store.write([command(1)])
        assert old._keeper is not None
        old._keeper.stop()  # its next question would tell it
        await depose(old, etcd.endpoints)
        async with leading(etcd.endpoints, prefix) as (_, _, newer):
            assert old.is_leading, "it has not noticed"
            with pytest.raises(
                OutcomeUnknown
            ):  # the new leader moved `turn`: this one cannot tell what it wrote itself
                await store.write([command(2)])
            assert old.lost.is_set() and not old.is_leading
            await newer.write([command(3)])
        with pytest.raises(Unavailable, match="does not lead"):
            await store.close()
            await store.load()
    assert names(await stored(etcd.endpoints, prefix)) == names([lock(1).lock, lock(3).lock])


@pytest.mark.fault("deposed-meta-service-continues")
async def test_a_leader_whose_lease_ended_knows_that_its_write_was_not_done(etcd: EtcdServers, prefix: bytes) -> None:
    async with leading(etcd.endpoints, prefix) as (_, leadership, store):
        await store.write([command(1)])
        await depose(leadership, etcd.endpoints)
        with pytest.raises(WriteRefused, match="another instance leads") as refused:
            await store.write([command(2), command(3)])
        assert refused.value.kept == 0 and isinstance(refused.value.cause, Unavailable)
        assert leadership.lost.is_set()
        with pytest.raises(WriteRefused, match="does not lead"):
            await store.write([command(4)])
    assert names(await stored(etcd.endpoints, prefix)) == {lock(1).lock.name}


@pytest.mark.fault("metadata-rebuilt-restored-store")
async def test_one_of_several_leads_and_the_others_know_where(etcd: EtcdServers, prefix: bytes) -> None:
    client = EtcdClient(etcd.endpoints, policy=QUICK)
    first, second = (EtcdLeadership(client, prefix, f"127.0.0.1:{port}") for port in (1, 2))
    await first.campaign()
    waiting = asyncio.ensure_future(second.campaign())
    await eventually(lambda: second.leader_address() == "127.0.0.1:1")
    assert first.is_leading and not second.is_leading and first.leader_address() == "127.0.0.1:1"
    with pytest.raises(Unavailable, match=r"ask 127\.0\.0\.1:1"):
        await EtcdStore(client, prefix, second).load()
    await first.resign()
    await waiting
    assert second.is_leading and second.leader_address() == "127.0.0.1:2" and first.lost.is_set()
    assert first.leader_address() is None, "it looks no more"
    third = EtcdLeadership(client, prefix, "127.0.0.1:3")
    waiting = asyncio.ensure_future(third.campaign())
    await eventually(lambda: third.leader_address() == "127.0.0.1:2")
    await third.resign()
    with pytest.raises(Unavailable, match="is over"):
        await waiting
    at_once = EtcdLeadership(client, prefix, "rebuild")
    with pytest.raises(Conflict, match=r"a meta service leads on this store \(127\.0\.0\.1:2\).*Nothing was done"):
        await at_once.lead_now()
    assert at_once.lost.is_set() and second.is_leading
    with pytest.raises(Conflict, match="a meta service leads"):  # where the commands begin
        async with open_target(EtcdAddress(etcd.endpoints, prefix.decode().strip("/")), None):
            pass
    await second.resign()
    alone = EtcdLeadership(client, prefix, "rebuild")
    await alone.lead_now()
    assert alone.is_leading
    await alone.resign()
    await client.close()


@pytest.mark.fault("deposed-meta-service-continues")
async def test_a_leader_that_cannot_renew_its_lease_stops_leading_by_its_own_clock(
    tmp_path: Path, prefix: bytes
) -> None:
    with etcd_servers(tmp_path / "etcd", 1) as servers:
        async with leading(servers.endpoints, prefix, lease_s=1) as (client, leadership, store):
            await store.write([command(1)])
            await asyncio.sleep(0)
            servers.freeze(0)
            await eventually(leadership.lost.is_set)
            with pytest.raises(WriteRefused, match="does not lead"):
                await store.write([command(2)])
            servers.thaw(0)
            again = EtcdLeadership(client, prefix, "127.0.0.1:2", lease_s=1)
            await again.campaign()
            await again.resign()


@pytest.mark.fault("event-loop-leading-meta")
async def test_a_busy_event_loop_does_not_lose_the_lead_and_one_that_hangs_does(
    etcd: EtcdServers, prefix: bytes
) -> None:
    async with leading(etcd.endpoints, prefix, lease_s=1) as (client, leadership, store):
        time.sleep(1.8)  # nothing on the loop runs, and a thread renews the lease
        assert leadership.is_leading
        await store.write([command(1)])
        lease, life_s = await client.grant_lease(1)
        gone: list[str] = []
        keeper = LeaseKeeper(
            client, lease, life_s, time.monotonic() + life_s, time.monotonic, gone.append, longest_still_s=0.1
        )
        keeper.start()
        await asyncio.sleep(0)
        time.sleep(1.5)
        await eventually(lambda: bool(gone))
        assert gone == ["its event loop is stuck"] and leadership.is_leading
        keeper.stop()


async def test_two_clusters_in_one_etcd_know_nothing_of_each_other(etcd: EtcdServers, prefix: bytes) -> None:
    async with (
        leading(etcd.endpoints, prefix + b"one/") as (_, _, one),
        leading(etcd.endpoints, prefix + b"two/") as (_, _, two),
    ):
        await one.write([command(1)])
        await two.write([command(2)])
        await one.close()
        assert version(await one.load()) == 1


# Room, limits, damage ---------------------------------------------------------------------------------------------
@pytest.mark.fault("etcd-quota-used")
async def test_a_used_up_quota_refuses_changes_in_words_and_heals_when_there_is_room(
    tmp_path: Path, prefix: bytes
) -> None:
    with etcd_servers(tmp_path / "etcd", 1, "--quota-backend-bytes", str(2 * 1024 * 1024)) as servers:
        async with leading(servers.endpoints, prefix) as (client, leadership, store), service_over(store) as world:
            await world.node()
            neighbour = rpc.RequestOp(request_put=rpc.PutRequest(key=b"/neighbour", value=bytes(100_000)))
            for _ in range(10):
                await client.txn(rpc.TxnRequest(success=[neighbour]))
            made = 0
            with pytest.raises(DiskFull, match="NOSPACE"):
                for made in range(200):
                    await world.topic(f"topic-{made}", shard_count=200)
            assert made and leadership.is_leading
            with pytest.raises(DiskFull):
                await world.topic("still-full")
            full = await world.client.snapshot()
            assert len(full.topics) == made and world.service.why_no_changes is None
            await asyncio.to_thread(servers.give_room)
            await world.topic("room-again")
            after = await world.client.snapshot()
            assert len(after.topics) == made + 1
        async with leading(servers.endpoints, prefix) as (_, _, store), service_over(store) as world:
            found = await world.client.snapshot()
            assert found.version == after.version
            for one, other in ((found.topics, after.topics), (found.shards, after.shards)):
                assert sorted(one, key=str) == sorted(other, key=str)


async def test_old_revisions_are_given_up_by_the_leader(etcd: EtcdServers, prefix: bytes) -> None:
    async with leading(etcd.endpoints, prefix) as (client, leadership, loaded):
        await loaded.close()
        store = EtcdStore(client, prefix, leadership, compact_every_s=0.05)
        await store.load()
        await store.write([command(1)])
        first = await client.range(rpc.RangeRequest(key=prefix + TURN))
        await store.write([command(2)])

        async def is_gone() -> bool:
            try:
                await client.range(rpc.RangeRequest(key=prefix + TURN, revision=first.kvs[0].mod_revision))
            except EtcdRefused as error:
                return error.code is grpc.StatusCode.OUT_OF_RANGE
            return False

        await eventually(is_gone)
        assert client.stats.compactions > 0
        await store.close()
        assert version(await store.load()) == 2
        await store.close()


class Overtaken(EtcdClient):
    """Another process writes and compacts just before the records are read, once."""

    compacted = 0

    async def range(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        if request.revision and b"/r/" in request.key and not self.compacted:
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=b"/neighbour", value=b"x"))
            self.compacted = (await self.txn(rpc.TxnRequest(success=[put]))).header.revision
            await self.compact(self.compacted)
        return await super().range(request)


async def test_a_load_whose_revision_is_given_up_meanwhile_begins_again(etcd: EtcdServers, prefix: bytes) -> None:
    async with leading(etcd.endpoints, prefix) as (_, _, store):
        await store.write([command(1)])
    client = Overtaken(etcd.endpoints, policy=QUICK)
    async with leading(etcd.endpoints, prefix, client=client) as (_, _, store):
        assert client.compacted
        await store.write([command(2)])
    assert names(await stored(etcd.endpoints, prefix)) == names([lock(1).lock, lock(2).lock])


@pytest.mark.fault("value-larger-etcd-accepts")
async def test_limits_lower_than_etcds_own_are_reported_and_cost_one_command(tmp_path: Path, prefix: bytes) -> None:
    with etcd_servers(tmp_path / "etcd", 1, "--max-txn-ops", "16") as servers:
        async with leading(servers.endpoints, prefix) as (_, _, store):
            with pytest.raises(WriteRefused, match="--max-txn-ops") as refused:
                await store.write([[PutHeader(HEADER), *map(lock, range(20))]])
            assert isinstance(refused.value.cause, LimitExceeded)
            await store.write([command(1)])


@pytest.mark.fault("record-piece-part-command")
@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ({REDO: b"not json"}, Corrupt),
        ({REDO: b'[1,1,3,"00"]'}, Corrupt),
        ({REDO: b'[1,1,3,"00"]', numbered(REDO_PARTS, 0): b"abc"}, Corrupt),
        ({REDO: b'[2,1,3,"00"]'}, InvalidRequest),
        ({b"r/a": b"~2", numbered(b"l/a", 0): b"x"}, Corrupt),
        ({b"r/x?": b"[]"}, Corrupt),
    ],
)
async def test_a_damaged_store_is_refused_and_named(
    etcd: EtcdServers, prefix: bytes, items: dict[bytes, bytes], kind: type[Exception]
) -> None:
    async with leading(etcd.endpoints, prefix) as (client, _, store):
        await store.close()
        for key, value in items.items():
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=prefix + key, value=value))
            await client.txn(rpc.TxnRequest(success=[put]))
        for _ in range(2):
            with pytest.raises(kind, match="etcd"):
                await store.load()


async def test_parts_without_their_record_are_nothing_and_go(etcd: EtcdServers, prefix: bytes) -> None:
    async with leading(etcd.endpoints, prefix) as (client, _, store):
        await store.write([command(1)])
        part_of_it = rpc.RequestOp(request_put=rpc.PutRequest(key=prefix + numbered(REDO_PARTS, 0), value=b"half"))
        await client.txn(rpc.TxnRequest(success=[part_of_it]))
        await store.close()
        assert names(await store.load()) == {lock(1).lock.name}
        assert await leftovers(etcd, prefix) == []


class Candidate(EtcdClient):
    """Counts how often it asked for a lease."""

    asked = 0

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        self.asked += 1
        return await super().grant_lease(ttl_s)


async def test_who_wants_to_lead_waits_for_an_etcd_without_room(tmp_path: Path, prefix: bytes) -> None:
    with etcd_servers(tmp_path / "etcd", 1, "--quota-backend-bytes", str(2 * 1024 * 1024)) as servers:
        client = Candidate(servers.endpoints, policy=QUICK)
        neighbour = rpc.RequestOp(request_put=rpc.PutRequest(key=b"/neighbour", value=bytes(100_000)))
        with pytest.raises(EtcdRefused, match="NOSPACE"):
            for _ in range(2_000):  # etcd looks at its size ten times a second
                await client.txn(rpc.TxnRequest(success=[neighbour]))
        leadership = EtcdLeadership(client, prefix, "127.0.0.1:1")
        waiting = asyncio.ensure_future(leadership.campaign())
        await eventually(lambda: client.asked > 1)
        assert not waiting.done()
        await asyncio.to_thread(servers.give_room)
        await waiting
        assert leadership.is_leading
        await leadership.resign()
        await client.close()
