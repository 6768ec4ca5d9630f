"""A leader that is replaced just when others brought about the seal of what it ended serves its listed copy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.model.errors import Unavailable
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.mark.fault("leader-replaced-completed-seal")
async def test_a_leader_that_is_replaced_before_it_heard_of_a_seal_serves_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3)
        key = await cluster.shard(3)
        shard = await cluster.leads_again(key)
        old, sealing = shard.context.node_id, shard.workers.sealing
        ask, gate = sealing._ask_seal, asyncio.Event()

        async def told_late(*asked: Any) -> Any:
            with suppress(Unavailable):  # others owe their reports
                await ask(*asked)
            await gate.wait()
            return await ask(*asked)

        monkeypatch.setattr(sealing, "_ask_seal", told_late)
        await cluster.append(key, b"0")
        assert shard.ask_roll(0)
        sealed = await cluster.is_sealed(key, copies=3)
        assert [copy.key for copy in shard.ended] == [sealed.key]
        await cluster.lose(old)
        await eventually(lambda: not shard.is_leader and not shard.ended)
        copy = shard.copies[sealed.epoch]
        gate.set()
        assert sealed.seal is not None
        data = b"".join(await shard.workers.reader.read_to_keep(shard, 0, 1 << 20))
        assert [header.end_offset for _, header in walk(data, source="read")] == [1]
        assert copy.damage is None
        assert not cluster.nodes[old].peer_reads.stats.ranges, "it asks nobody for what it has"
