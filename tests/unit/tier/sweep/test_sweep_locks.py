"""What a node left in the bucket is swept under its write lock, which must not cost it its claims."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.machines.tiering.claims import holder_name, is_known, name_ending
from stratalog.machines.tiering.upload_duty import SWEEP_LEASE_MS, SWEEPER
from stratalog.model.commands.table_commands import AcquireLock, RegisterNode
from stratalog.model.errors import Conflict
from stratalog.model.metadata import NodeInfo
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.sweep.expired_writers import ExpiredWriters
from support.meta_worlds import HandClock


@pytest.mark.fault("node-dies-permanently-cut")
async def test_a_sweep_does_not_forget_a_life_with_a_remaining_claim() -> None:
    """The node would take its own claim for a stranger's, and neither upload nor sweep any more."""
    clock = HandClock()
    meta = MetaService(MemoryStore(), clock)
    await meta.start()
    first = UUID(int=1)
    standing = (name_ending(first),)  # it could not be deleted
    for number in range(20):
        clock.now_ms += 10
        await meta.perform(AcquireLock("tier/1", holder_name(f"node-1/{number}", UUID(int=number + 1)), 1, standing))
    clock.now_ms += 10
    catalog = Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))
    await ExpiredWriters(2, meta, catalog, 1_000).last_epoch(1)
    clock.now_ms += 10
    back = await meta.perform(AcquireLock("tier/1", holder_name("node-1/20", UUID(int=99)), 1, standing))
    assert is_known(first, back.earlier)
    await meta.close()


@pytest.mark.parametrize(("name", "is_taken"), [("tier/1", True), (COMPACTION_LOCK, True), ("tier/7", False)])
async def test_a_sweep_makes_no_lock_of_a_node_that_never_was(name: str, is_taken: bool) -> None:
    """Locks are never forgotten: one node could use up all of them."""
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    await meta.perform(RegisterNode(NodeInfo(1, "disk-1", "127.0.0.1", 9092)))
    sweep = AcquireLock(name, SWEEPER, SWEEP_LEASE_MS)
    if is_taken:
        assert (await meta.perform(sweep)).epoch == 1
    else:
        with pytest.raises(Conflict, match="never registered"):
            await meta.perform(sweep)
    await meta.close()
