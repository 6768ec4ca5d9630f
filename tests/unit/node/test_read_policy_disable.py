"""Nodes of a topic with `remote.read.policy=Disable`: a node leaves, and every record stays readable; where no copy is
left, a consumer gets an error with the reason in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.errors import OutOfReach
from stratalog.model.retirement import RetireStep
from stratalog.model.segment import RemoteState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.tiered_shards import TieredShardRig
from unit.shards.log.test_unreadable_copies import sealed

VALUES_OF_NODES = [b"value-%d" % number for number in range(5)]


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
async def test_a_node_leaves_once_others_have_what_readers_may_not_take_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        leaving = Leaving(cluster, has_store=True)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        for value in VALUES_OF_NODES:
            await cluster.append(key, value)
        gone = cluster.leader(key)
        await leaving.retire(gone)
        await leaving.until(step=RetireStep.DONE, of=gone)
        first = cluster.segments(key)[0]
        assert first.local_nodes and gone not in first.local_nodes
        await cluster.until(lambda: cluster.segments(key)[0].remote.state is RemoteState.COMPLETE)
        assert (await cluster.values(key))[:5] == VALUES_OF_NODES


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
async def test_a_read_that_the_policy_alone_refuses_is_an_error_and_is_counted(tmp_path: Path) -> None:
    """It was a retriable code without a word anywhere: consumers waited without an end."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await sealed(rig, remote_storage_enable="true", remote_read_policy="Disable")
        await rig.uploaded()
        rig.file_of(shard, 0).unlink()
        shard.copies[0].file.close()
        for count in (1, 2):
            with pytest.raises(OutOfReach, match=r"remote\.read\.policy=Disable keeps readers out: .*NotInDisk"):
                await rig.reader.read(shard, 0, 1 << 20)
            assert rig.local.context.stats.barred_reads == count
