"""A topic of many shards that is written to at once: its followers make their files without holding the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog_node.disk import files
from stratalog_node.disk.durable_files import made_file
from stratalog_node.replication import first_files
from stratalog_node.replication.first_files import AT_ONCE
from support.node_cluster import NodeCluster
from support.waiting import eventually

SHARDS = 60


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        yield cluster


class MadeFiles:
    """Of these copies: how many each turn of the loop made itself, and how many a thread made."""

    def __init__(self, patch: pytest.MonkeyPatch, copies: set[files.SegmentFile]) -> None:
        self.by_turn: Counter[int] = Counter()
        self.on_threads = 0
        self._turn = 0
        create, made = files.SegmentFile.create, made_file

        def in_turn(file: files.SegmentFile, header: bytes, *spare: Any, **how: Any) -> None:
            if file in copies and not spare:
                self.by_turn[self._turn] += 1
            create(file, header, *spare, **how)

        def on_thread(path: Path) -> int:
            assert threading.current_thread() is not threading.main_thread()
            self.on_threads += 1
            return made(path)

        patch.setattr(files.SegmentFile, "create", in_turn)
        patch.setattr(first_files, "made_file", on_thread)
        self._count_turns()

    def _count_turns(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._count_turns)


@pytest.mark.fault("thousand-shards-written-first")
async def test_first_batches_of_many_shards_make_few_files_in_a_turn(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    topic = await cluster.meta.service.perform(CreateTopic("flights", SHARDS, 2))
    keys = [ShardKey(topic.topic_id, number) for number in range(SHARDS)]
    await eventually(lambda: all(cluster.led(key) is not None for key in keys))
    followed = [node.following.replicas for node in cluster.nodes.values()]
    await eventually(lambda: sum(map(len, followed)) >= SHARDS)
    copies = {replica.copy.file for replicas in followed for replica in replicas.values()}
    made = MadeFiles(cluster.patch, copies)
    for key in keys:
        cluster.offer(key, b"%d" % key.shard)
    await eventually(lambda: all((shard := cluster.led(key)) and shard.high_watermark == 1 for key in keys))
    # Both nodes run on this loop.
    assert max(made.by_turn.values()) <= 2 * AT_ONCE
    assert made.on_threads > 0
    for key in keys:
        assert await cluster.values(key) == [b"%d" % key.shard]
