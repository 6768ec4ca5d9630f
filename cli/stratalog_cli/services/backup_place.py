"""Where a meta service puts snapshots of its metadata: the bucket of `--bucket`, by the settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from stratalog.settings.process import ProcessSettings

if TYPE_CHECKING:
    from stratalog.objects import ObjectStore
    from stratalog_meta.bucket.backups import BackupPlace


def backup_place(bucket: str | None, settings: ProcessSettings, running: AsyncExitStack) -> BackupPlace | None:
    """None without a bucket. The store is closed with `running`; it makes no request before it is used."""
    if bucket is None:
        return None
    from stratalog.objects.opening import open_store

    store = open_store(bucket)
    running.push_async_callback(store.close)
    return place_in(store, settings)


def place_in(store: ObjectStore, settings: ProcessSettings, is_told: Callable[[], bool] = bool) -> BackupPlace:
    """`is_told`: see `BackupPlace`."""
    from stratalog_meta.bucket.backups import BackupPlace

    interval_s = settings.meta_snapshot_interval_ms / 1_000
    return BackupPlace(store, interval_s, soonest_s=min(1.0, interval_s), is_told=is_told)
