"""What a node tells of its work with its heartbeats: what it took, gave and owes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.machines.leading.chain_events import ShardStopped
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.activity import MAX_STOPPED_TOLD
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog.objects.opening import open_store
from stratalog_node.activity import ActivityReporter
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    """One node, which uploads nothing before a test ends."""
    store = open_store(str(tmp_path / "bucket"))
    async with NodeCluster(tmp_path, monkeypatch, store) as started:
        await started.start(1, remote_upload_interval_ms=3_600_000)
        yield started
    await store.close()


class Watch:
    """A clock that the test advances, and that advances by `look_ns` each time it is read."""

    def __init__(self) -> None:
        self.now_ns = self.look_ns = 1_000_000

    def __call__(self) -> int:
        self.now_ns += self.look_ns
        return self.now_ns


def teller_of(cluster: NodeCluster, watch: Watch) -> ActivityReporter:
    node = cluster.nodes[1]
    return ActivityReporter(node.shards, node.local.context.stats, node.remote_reads, node.tier, node.readiness, watch)


async def test_bytes_in_and_out_and_unsent_bytes_are_reported(cluster: NodeCluster) -> None:
    watch = Watch()
    teller = teller_of(cluster, watch)
    before = teller.report()
    key = await cluster.shard(1)
    await cluster.append(key, b"x" * 10_000)
    await cluster.values(key)
    uploader = cluster.nodes[1].tier.uploader
    assert uploader is not None
    await eventually(lambda: uploader.status().uploader.unsent_bytes > 10_000)
    watch.now_ns += 10**12
    now = teller.report()
    assert now.produced_bytes - before.produced_bytes > 10_000 and now.fetched_bytes - before.fetched_bytes > 10_000
    assert before.uploads is not None and now.uploads is not None
    assert before.uploads.unsent_bytes == 0 and now.uploads.unsent_bytes > 10_000
    assert (now.troubles, now.stopped_shards, now.stopped) == ((), 0, ())


async def test_checking_uploads_takes_at_most_a_thousandth_of_the_time(cluster: NodeCluster) -> None:
    watch = Watch()
    teller = teller_of(cluster, watch)
    first = teller.report().uploads
    key = await cluster.shard(1)
    await cluster.append(key, b"x" * 10_000)
    uploader = cluster.nodes[1].tier.uploader
    assert uploader is not None
    await eventually(lambda: uploader.status().uploader.unsent_bytes > 10_000)
    watch.now_ns += 998 * watch.look_ns
    assert teller.report().uploads is first, "what it told before"
    watch.now_ns += watch.look_ns
    again = teller.report().uploads
    assert again is not None and again.unsent_bytes > 10_000


async def test_stopped_shards_are_counted_and_the_first_of_them_named(cluster: NodeCluster) -> None:
    topic = await cluster.meta.service.perform(CreateTopic("flights", MAX_STOPPED_TOLD + 2, 1, {}))
    keys = [ShardKey(topic.topic_id, shard) for shard in range(MAX_STOPPED_TOLD + 2)]
    await eventually(lambda: all(cluster.led(key) is not None for key in keys))
    for key in reversed(keys):
        (await cluster.leads_again(key)).handle(ShardStopped(Stop("the disk is gone " * 100, StopCause.DEPOSED)))
    told = teller_of(cluster, Watch()).report()
    assert told.stopped_shards == len(keys)
    assert [(one.topic, one.shard) for one in told.stopped] == [("flights", at) for at in range(MAX_STOPPED_TOLD)]
    assert {one.cause for one in told.stopped} == {"deposed"} and max(len(one.reason) for one in told.stopped) == 300
    assert all(one.next_step for one in told.stopped)


async def test_the_end_of_a_life_is_reported(cluster: NodeCluster) -> None:
    node = cluster.nodes[1]
    node.why_over = "another life of this node has begun"
    assert teller_of(cluster, Watch()).report().troubles == ("life: another life of this node has begun",)
    node.why_over = ""
