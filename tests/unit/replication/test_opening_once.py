"""A copy is opened once, however much the metadata say of it meanwhile: two on one file would cut and fill each
other's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratalog_node.replication.replica_copy import ReplicaCopy
from support.node_cluster import NodeCluster
from support.sequences import offer_sequenced
from support.waiting import eventually


async def test_a_segment_that_is_sealed_while_its_copy_is_opened_is_followed_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[tuple[int, int]] = Counter()
    find = ReplicaCopy.open_found

    def counted(copy: ReplicaCopy, *given: Any) -> bool:
        opened[copy._context.node_id, copy.key.epoch] += 1
        return find(copy, *given)

    monkeypatch.setattr(ReplicaCopy, "open_found", counted)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3)
        key = await cluster.shard(3)
        old = await cluster.leads_again(key)
        node_id = old.context.node_id
        with cluster.deaf(node_id):
            offer_sequenced(old, 0)
            await eventually(lambda: old.end_offset == 1)
            await cluster.lose(node_id)
            other = next(number for number in cluster.nodes if number != node_id)
            await eventually(lambda: cluster.segments(key, other)[0].seal is not None)
        await eventually(lambda: node_id in cluster.segments(key, other)[0].local_nodes)
        assert opened[node_id, 0] == 1
