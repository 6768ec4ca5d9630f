"""Quotas as a node sees them: loaded at once, followed in order, and the same after a reload."""

from __future__ import annotations

import random

from stratalog.machines.quotas.table import AppliedQuota
from stratalog.model.commands.rights_commands import AlterQuotas
from stratalog.model.metadata import Change, QuotasChanged, QuotasDeleted, Snapshot
from stratalog.model.quotas import EntityQuotas, QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.shards.catalog.catalog import Catalog
from support.meta_worlds import HandClock

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE


def new_catalog() -> Catalog:
    return Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))


def set_of(catalog: Catalog) -> set[EntityQuotas]:
    return set(catalog.quotas)


def test_a_snapshot_brings_all_quotas() -> None:
    catalog = new_catalog()
    alice = EntityQuotas(QuotaEntity("alice"), QuotaLimits(producer_byte_rate=5.0))
    catalog.load(Snapshot(3, (), (), (), quotas=(alice,)))
    assert catalog.quotas.of_client(PRODUCE, "alice", "app") == AppliedQuota(5.0, "alice", None)
    assert catalog.quotas.of_client(PRODUCE, "bob", "app") is None


async def test_a_catalog_that_missed_any_history_has_the_quotas_of_one_that_followed_it() -> None:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    chance = random.Random(4)
    first = await meta.snapshot()
    followed, late = new_catalog(), new_catalog()
    followed.load(first)
    late.load(first)
    told: list[Change] = []
    late.on_change(told.append)
    for step in range(60):
        entity = QuotaEntity(chance.choice("ab"), chance.choice([None, "", "app"]))
        change = QuotaChange(PRODUCE, chance.choice([None, 1.0, 2.0]))
        await meta.perform(AlterQuotas((QuotaAlteration(entity, (change,)),)))
        if step % 9 == 0:
            snapshot = await meta.snapshot()
            before = set_of(late)
            told.clear()
            late.reload(snapshot)
            quotas = [change for change in told if isinstance(change, QuotasChanged | QuotasDeleted)]
            differing = {one.entity for one in before ^ set(snapshot.quotas)}
            assert len(quotas) == len(differing), "only what differs is told"
            assert set_of(late) == set(snapshot.quotas)
    async for change_set in meta.watch(first.version):
        followed.apply(change_set)
        if change_set.version == (await meta.snapshot()).version:
            break
    late.reload(await meta.snapshot())
    assert set_of(followed) == set_of(late) != set()
    await meta.close()
