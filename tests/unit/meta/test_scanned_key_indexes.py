"""A bucket is scanned, for metadata to be rebuilt of it: key indexes belong to their segments."""

from __future__ import annotations

from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_meta.bucket.scan import scan_bucket
from support.cold_data import ColdShard, batches_from


async def test_all_objects_of_a_complete_copy_are_counted() -> None:
    store = open_memory(StoreSettings())
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5), batches_from(15, 5)])
    there = sum([info.size_bytes async for info in store.list(cold.names.data_prefix)])
    scan = await scan_bucket(store, cold.names, [], lambda _: None)
    (found,) = scan.folders.values()
    assert [manifest.size_bytes for manifest in found.manifests] == [there]
    assert scan.damaged == {}


async def test_a_manifest_whose_key_index_is_gone_is_not_taken() -> None:
    """None may name an object that is not there: the segment is completed again, from its parts."""
    store = open_memory(StoreSettings())
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5), batches_from(15, 5)])
    (run,) = [info.key async for info in store.list(cold.names.data_prefix) if info.key.endswith(".keys")]
    await store.delete([run])
    scan = await scan_bucket(store, cold.names, [], lambda _: None)
    (found,) = scan.folders.values()
    assert found.manifests == []
    assert [(part.part.base_offset, part.part.end_offset) for part in found.parts] == [(0, 15), (15, 30)]
    assert [key.rsplit(".", 1)[1] for key in scan.damaged] == ["manifest"]
