"""A node is lost for good: what it held is copied by another process, which then serves it when all others are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.admin_api.client import AdminClient as StatusClient
from stratalog.admin_api.models import SealRequest
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.segment import RemoteState, Segment
from stratalog_node.node import wall_ms
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.topics import produce, read_over_changes
from support.waiting import eventually

VALUES = [b"flight-%d" % number for number in range(200)]
SETTINGS = ("node.lease.ms=600", "replica.replace.after.ms=600")


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=SETTINGS).start()
    yield process
    process.kill()


def node(tmp_path: Path, meta: MetaProcess, number: int, *more: str) -> NodeProcess:
    arguments = ("--meta", meta.url, "--id", str(number), *more)
    return NodeProcess(tmp_path / f"node-{number}", verb=("node", "start"), arguments=arguments).start()


@pytest.fixture
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Arguments of the nodes: with an object store, where the test asks for one."""
    return ("--bucket", str(tmp_path / "bucket")) if getattr(request, "param", False) else ()


@pytest.fixture
def nodes(tmp_path: Path, meta: MetaProcess, bucket: tuple[str, ...]) -> Iterator[dict[int, NodeProcess]]:
    started = {number: node(tmp_path, meta, number, *bucket) for number in (1, 2)}
    yield started
    for one in started.values():
        one.kill()


async def first_segment(client: HttpMetaClient) -> Segment:
    snapshot = await client.snapshot()
    (topic,) = [topic for topic in snapshot.topics if topic.name == "flights"]
    (shard,) = [shard for shard in snapshot.shards if shard.key.topic_id == topic.topic_id]
    return shard.segments[0]


@pytest.mark.fault("node-lost-permanently-sealed")
async def test_what_a_lost_node_held_is_served_by_the_one_that_took_its_place(
    tmp_path: Path, meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].bootstrap})
    for made in admin.create_topics([NewTopic("flights", 1, 2)]).values():
        await asyncio.to_thread(made.result, 30)
    await asyncio.to_thread(produce, nodes[1].bootstrap, "flights", VALUES, patience_s=60)
    nodes[3] = await asyncio.to_thread(node, tmp_path, meta, 3)
    client = HttpMetaClient(meta.url)
    lost = nodes.pop(2)
    lost.kill()

    async def is_made_whole() -> bool:
        """Led by the lost node, a recovery ends it; led by the other, a person does."""
        segment = await first_segment(client)
        if segment.seal is None and segment.leader == 1:
            request = SealRequest(topic="flights", shard=0)
            await asyncio.to_thread(StatusClient(nodes[1].admin, timeout_s=60.0).seal, request)
        return {1, 3} <= {*segment.local_nodes}

    await eventually(is_made_whole, timeout=60)
    kinds = {one.kind for one in troubles(await client.snapshot(), wall_ms()) if one.topic == "flights"}
    assert TroubleKind.NO_COPY not in kinds and TroubleKind.TOO_FEW_COPIES not in kinds
    await client.close()
    nodes.pop(1).kill()
    found = await asyncio.to_thread(read_over_changes, nodes[3].bootstrap, "flights", len(VALUES))
    assert found == VALUES


@pytest.mark.fault("all-local-copies-lost-bucket-whole")
@pytest.mark.parametrize("bucket", [True], indirect=True, ids=["bucket"])
async def test_what_the_only_holder_lost_is_copied_from_the_bucket_and_served(
    tmp_path: Path, meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    """Readers may not use the bucket, and no living node has a copy to make another from."""
    topic = NewTopic("flights", 1, 1, config={"remote.read.policy": "Disable", "remote.storage.enable": "true"})
    admin = AdminClient({"bootstrap.servers": nodes[1].bootstrap})
    for made in admin.create_topics([topic]).values():
        await asyncio.to_thread(made.result, 30)
    await asyncio.to_thread(produce, nodes[1].bootstrap, "flights", VALUES, patience_s=60)
    client = HttpMetaClient(meta.url)
    leader = (await first_segment(client)).leader
    assert leader is not None
    request = SealRequest(topic="flights", shard=0)
    await asyncio.to_thread(StatusClient(nodes[leader].admin, timeout_s=60.0).seal, request)

    async def first() -> Segment:
        return await first_segment(client)

    async def is_in_the_bucket() -> bool:
        return (await first()).remote.state is RemoteState.COMPLETE

    await eventually(is_in_the_bucket, timeout=60)
    nodes.pop(leader).kill()
    (other,) = nodes

    async def is_given_up() -> bool:
        """By a person: what was still being written there goes, and the shard continues elsewhere."""
        (lost,) = [one for one in (await client.snapshot()).nodes if one.node_id == leader]
        if not lost.is_alive:
            await client.perform(RetireNode(leader, force_storage_id=lost.storage_id))
        return not lost.is_alive

    await eventually(is_given_up, timeout=60)

    async def has_a_copy() -> bool:
        return other in (await first()).local_nodes

    await eventually(has_a_copy, timeout=60)
    assert not [one for one in troubles(await client.snapshot(), wall_ms()) if one.kind is TroubleKind.NO_COPY]
    await client.close()
    found = await asyncio.to_thread(read_over_changes, nodes[other].bootstrap, "flights", len(VALUES))
    assert found == VALUES
