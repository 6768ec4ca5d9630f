"""What a node does for those that leave: one that cannot be looked at keeps no other waiting; and what
it says of its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.commands.retirement_commands import ReportSighting, RetireNode
from stratalog.model.errors import Unavailable
from stratalog.model.metadata import Node
from stratalog.model.retirement import RetireStep, Wait, WaitReason
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.leaving.node_verifier import Verified
from stratalog_node.leaving.retirement_checks import RetirementChecks
from stratalog_node.node import wall_ms
from stratalog_node.shards.catalog.catalog import Catalog
from support.faulty_store import FaultyStore
from support.leaving_nodes import QUICK
from support.node_cluster import NodeCluster
from support.retirement_story import RetirementStory
from support.waiting import eventually


class _Sighter:
    async def verify(self, _node: Node) -> Verified:
        return Verified(segments=1)


class _Meta:
    """It takes no word about node 1."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    async def perform(self, command: ReportSighting) -> None:
        if command.node_id == 1:
            raise Unavailable("not now")
        self.heard.append(command.node_id)


@pytest.mark.fault("two-nodes-retire-retirement")
async def test_a_retirement_that_cannot_be_looked_at_keeps_no_other_waiting() -> None:
    story = RetirementStory(nodes=3)
    for node_id in (1, 2):
        story.do(RetireNode(node_id))
        story.run_passes(node_id)
        assert story.record(node_id).step is RetireStep.VERIFY
    catalog = Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))
    catalog.load(story.table.snapshot())
    meta = _Meta()
    # type: ignore[arg-type]  # what a check asks of them
    duty = RetirementChecks(3, catalog, meta, _Sighter(), None, ObjectNames("", "cluster-1"), 1_000, lambda: 0)
    await duty.check_all()
    assert meta.heard == [2]


@pytest.mark.fault("object-store-unavailable-during")
async def test_a_node_says_with_its_heartbeats_for_how_long_its_store_is_away_and_the_retirement_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore(open_memory(StoreSettings()), wall_ms)
    async with NodeCluster(tmp_path, monkeypatch, store, lease_ms=4_000) as cluster:
        await cluster.start(1, 2, **QUICK)
        key = await cluster.shard(1, remote_storage_enable="true")
        await cluster.append(key, b"first")
        await eventually(lambda: cluster.segments(key)[0].remote.commit_offset == 1)
        store.is_away = True
        leader = cluster.leader(key)
        await cluster.append(key, b"second")
        service = cluster.meta.service
        await service.perform(RetireNode(leader))

        async def wait() -> Wait | None:
            (told,) = await service.retirements()
            return told.retirement.wait if told.retirement.step is RetireStep.OFFLOAD else None

        async def is_said() -> bool:
            found = await wait()
            return found is not None and found.reason is WaitReason.STORE_UNREACHABLE and " for 0 s" not in found.words

        await eventually(is_said, timeout=30)
        found = await wait()
        assert found is not None and "the object store has not answered for" in found.words
        store.is_away = False

        async def goes_on() -> bool:
            (told,) = await service.retirements()
            return told.retirement.step not in (RetireStep.SEAL, RetireStep.OFFLOAD)

        await eventually(goes_on, timeout=30)
