"""The power takes the first page of a copy on every node, after its data went to the object store: the copy comes back
from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from support.node_cluster import NodeCluster
from support.waiting import eventually

PAGE_BYTES = 4096
LEFT = {
    "an empty file": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "the later pages": lambda data: bytes(PAGE_BYTES) + data[PAGE_BYTES:],
}


@pytest.mark.fault("copy-header-lost")
@pytest.mark.parametrize("left", LEFT)
async def test_a_copy_whose_header_the_power_took_is_filled_from_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, remote_upload_interval_ms=1, remote_upload_chunk_bytes=2_048)
        key = await cluster.shard(2)
        values = [b"%d" % number * 3_000 for number in range(4)]
        for value in values:
            await cluster.append(key, value)
        await eventually(lambda: cluster.segments(key)[0].remote.commit_offset == len(values))
        for node_id in (1, 2):
            path = cluster.layout(node_id).segment(cluster.segments(key)[0].key)
            await cluster.power_cut(node_id)
            path.write_bytes(LEFT[left](path.read_bytes()))
        await cluster.start(1, 2)
        await cluster.is_sealed(key)
        assert await cluster.append(key, b"later") == len(values)
        assert await cluster.values(key) == [*values, b"later"]
