"""`stratalog snapshot restore`: the command around `stratalog_meta.bucket.restore`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.objects import open_store
from stratalog_cli.services.meta_rebuild import open_target
from stratalog_cli.snapshots.snapshots import find_one
from stratalog_meta.bucket.restore import Restored, restore_cut
from stratalog_meta.clocks import wall_ms
from stratalog_meta.stores.etcd.address import EtcdAddress

if TYPE_CHECKING:
    from stratalog_meta.stores.etcd.access import EtcdAccess


def restore(
    bucket: str,
    cluster_id: str | None,
    name: str,
    place: Path | EtcdAddress,
    access: EtcdAccess | None,
    nodes: tuple[int, ...],
    step: Callable[[str], None],
) -> Restored:
    """Raises: NotFound, AlreadyExists, Corrupt, what store and bucket raise."""

    async def run() -> Restored:
        store = open_store(bucket)
        try:
            cut = await find_one(store, cluster_id, name)
            async with open_target(place, access) as target:
                return await restore_cut(store, cut, target, nodes, wall_ms(), step)
        finally:
            await store.close()

    return asyncio.run(run())
