"""A large state of the meta service: puts it into a store, and asks a running service for it as nodes do.

    python bench/meta_state.py fill (--data DIR | --store etcd://H:P) [--shards 1000] [--segments 100] [--producers 1]
    python bench/meta_state.py follow URL [--watchers 10] [--seals 200]

`fill` writes records as the service does: topics of 100 shards, each shard with SEGMENTS sealed segments of three
replicas and an active one. `follow` reads the whole state with WATCHERS readers at once, byte for byte, and once as a
node decodes it, then watches with all of them while segments are rolled and sealed. Each prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import aiohttp

from stratalog.machines.table import records as table_records
from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import ReportReplica, RollSegment
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.producers import NO_PRODUCERS, ProducerTally
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog_meta.stores.meta_store import MetaStore

NODES = 10
REPLICAS = 3
SHARDS_OF_A_TOPIC = 100
RECORDS_OF_A_SEGMENT = 1_000_000
START_MS = 1_760_000_000_000
TURN = 500
"""Commands of one write; each of a few records."""


# What is put in -----------------------------------------------------------------------------------------------------
def producers_at(count: int, end_offset: int) -> ProducerTally:
    return ProducerTally(count, end_offset.to_bytes(16, "big"), 5_000, 86_400_000) if count else NO_PRODUCERS


def seal_of(key: SegmentKey, replicas: tuple[int, ...], producers: ProducerTally) -> SealRecord:
    end_offset = key.base_offset + RECORDS_OF_A_SEGMENT
    size, digest = 1 << 30, key.base_offset.to_bytes(16, "big")
    return SealRecord(
        key.epoch, key.base_offset, end_offset, START_MS, START_MS, size, digest, producers, replicas, START_MS
    )


def commands(shards: int, segments: int, producers: int) -> Iterator[list[table_records.TableWrite]]:
    """Each list is what one command would write."""
    for number in range(1, NODES + 1):
        info = NodeInfo(number, f"disk-{number}", "127.0.0.1", 9_000 + number)
        yield [table_records.PutNode(table_records.NodeEntry(info, 1, token=number))]
    for topic_number in range(-(-shards // SHARDS_OF_A_TOPIC)):
        count = min(SHARDS_OF_A_TOPIC, shards - topic_number * SHARDS_OF_A_TOPIC)
        topic = Topic(f"topic-{topic_number}", UUID(int=topic_number + 1), count, REPLICAS, {}, START_MS)
        yield [table_records.PutTopic(topic)]
        for shard in range(count):
            yield from shard_commands(ShardKey(topic.topic_id, shard), segments, producers)


def shard_commands(shard: ShardKey, segments: int, producers: int) -> Iterator[list[table_records.TableWrite]]:
    replicas = tuple((shard.shard + at) % NODES + 1 for at in range(REPLICAS))
    for epoch in range(segments + 1):
        key = SegmentKey(shard.topic_id, shard.shard, epoch, epoch * RECORDS_OF_A_SEGMENT)
        written: list[table_records.TableWrite] = (
            [] if epoch else [table_records.PutShard(table_records.ShardRow(shard, 0))]
        )
        if epoch == segments:
            active = Segment(key, SegmentState.ACTIVE, replicas[0], replicas, replicas, 0, START_MS)
            yield [*written, table_records.PutSegmentHead(active)]
            continue
        seal = seal_of(key, replicas, producers_at(producers, key.base_offset + RECORDS_OF_A_SEGMENT))
        sealed = Segment(
            key,
            SegmentState.SEALED,
            None,
            replicas,
            replicas,
            0,
            START_MS,
            seal.end_offset,
            seal,
            tuple(sorted(replicas)),
        )
        yield [*written, table_records.PutSegmentHead(sealed), table_records.PutSeal(key, seal)]


async def fill(chosen: argparse.Namespace) -> dict[str, object]:
    began = time.monotonic()
    if chosen.data is not None:
        from stratalog_meta.stores.rocksdb import RocksStore

        store: MetaStore = RocksStore(Path(chosen.data) / "meta")
        written = await write(store, chosen)
    else:
        from stratalog_meta.stores.etcd.address import parse_address
        from stratalog_meta.stores.etcd.client import EtcdClient
        from stratalog_meta.stores.etcd.leadership import EtcdLeadership
        from stratalog_meta.stores.etcd.store import EtcdStore

        place = parse_address(chosen.store)
        client = EtcdClient(place.endpoints)
        leadership = EtcdLeadership(client, place.key_prefix, "127.0.0.1:1")
        await leadership.campaign()
        written = await write(EtcdStore(client, place.key_prefix, leadership), chosen)
        await leadership.resign()
        await client.close()
    return {"commands": written, "seconds": time.monotonic() - began}


async def write(store: MetaStore, chosen: argparse.Namespace) -> int:
    assert await store.load() == [], "an empty store is asked for"
    turn: list[list[table_records.TableWrite]] = [
        [table_records.PutHeader(table_records.TableHeader(str(UUID(int=1)), 1, 1_000_000))]
    ]
    written = 0
    for command in commands(chosen.shards, chosen.segments, chosen.producers):
        turn.append(command)
        if len(turn) >= TURN:
            await store.write(turn)
            written, turn = written + len(turn), []
    await store.write(turn)
    await store.close()
    return written + len(turn)


# What is asked ------------------------------------------------------------------------------------------------------
async def read_whole(session: aiohttp.ClientSession, url: str) -> int:
    size = 0
    async with session.get(f"{url}/v1/snapshot") as response:
        response.raise_for_status()
        async for piece in response.content.iter_any():
            size += len(piece)
    return size


class Watching:
    """Watchers that count bytes, until the version that they wait for has come."""

    def __init__(self, session: aiohttp.ClientSession, url: str, after: int, count: int) -> None:
        self.sizes = [0] * count
        self._newest = [after] * count
        self._tasks = [
            asyncio.ensure_future(self._watch(session, f"{url}/v1/watch?after={after}", at)) for at in range(count)
        ]

    async def _watch(self, session: aiohttp.ClientSession, url: str, at: int) -> None:
        async with session.get(url) as response:
            response.raise_for_status()
            async for line in response.content:
                self.sizes[at] += len(line)
                if len(line) > 1:
                    self._newest[at] = json.loads(line)["version"]

    async def reached(self, version: int) -> None:
        while min(self._newest) < version:
            assert not any(task.done() for task in self._tasks), "a watch ended"
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


async def follow(chosen: argparse.Namespace) -> dict[str, object]:
    client = HttpMetaClient(chosen.url, RetryPolicy(attempt_s=300.0))
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as session:
        began = time.monotonic()
        sizes = await asyncio.gather(*(read_whole(session, chosen.url) for _ in range(chosen.watchers)))
        snapshots_s = time.monotonic() - began
        began = time.monotonic()
        snapshot = await client.snapshot()
        decoded_s = time.monotonic() - began
        version = snapshot.version
        watching = Watching(session, chosen.url, version, chosen.watchers)
        active = [shard.segments[-1].key for shard in snapshot.shards][: chosen.seals]
        replicas = {shard.segments[-1].key: shard.segments[-1].replicas for shard in snapshot.shards}
        began = time.monotonic()
        for key in active:
            await seal(client, key, replicas[key])
        version = await client.read_version()
        await watching.reached(version)
        sealed_s = time.monotonic() - began
        watching.stop()
    await client.close()
    return {
        "snapshot_bytes": sizes[0],
        "snapshots_s": snapshots_s,
        "decoded_s": decoded_s,
        "seals": len(active),
        "sealed_s": sealed_s,
        "watch_bytes": max(watching.sizes),
    }


async def seal(client: HttpMetaClient, key: SegmentKey, replicas: tuple[int, ...]) -> None:
    await client.perform(RollSegment(key, key.base_offset + RECORDS_OF_A_SEGMENT))
    for node in replicas:
        proof = seal_of(key, (node,), producers_at(1, key.base_offset + RECORDS_OF_A_SEGMENT))
        await client.perform(ReportReplica(key, proof, caller=Life(node, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    filling = verbs.add_parser("fill")
    filling.add_argument("--data")
    filling.add_argument("--store")
    filling.add_argument("--shards", type=int, default=1_000)
    filling.add_argument("--segments", type=int, default=100)
    filling.add_argument("--producers", type=int, default=1)
    following = verbs.add_parser("follow")
    following.add_argument("url")
    following.add_argument("--watchers", type=int, default=10)
    following.add_argument("--seals", type=int, default=200)
    chosen = parser.parse_args()
    found = asyncio.run(fill(chosen) if chosen.verb == "fill" else follow(chosen))
    print(json.dumps(found), flush=True)
    os._exit(0)  # gRPC's threads are not waited for


if __name__ == "__main__":
    main()
