"""What the embedded store leaves to the other threads of its process while the disk works."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from stratalog.machines.table.records import DropTopic
from stratalog_meta.stores.rocksdb import RocksStore
from support.interpreter import lets_others_run


async def test_a_commit_leaves_the_interpreter_to_others_while_the_disk_works(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "meta")
    await store.load()
    try:
        assert lets_others_run(lambda: store._write([[DropTopic(UUID(int=1))]]))
    finally:
        await store.close()
