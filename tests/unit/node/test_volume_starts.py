"""When the process that reads a retired directory may begin: also before the mount has, as the retirement proceeds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.mount_commands import OpenVolume
from stratalog.model.errors import NotFound
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.settings.process import ProcessSettings
from stratalog_node.volume.volume_node import VolumeNode
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.waiting import eventually
from unit.node.test_mounted_data_sets import is_served, mount_of


class Refusals:
    """A meta service whose refusals to open a volume are counted."""

    def __init__(self, meta: Any) -> None:
        self._meta = meta
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._meta, name)

    async def perform(self, command: Any) -> Any:
        try:
            return await self._meta.perform(command)
        except NotFound:
            self.count += isinstance(command, OpenVolume)
            raise


async def test_a_directory_whose_mount_is_about_to_begin_is_read_once_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step says `mount` one pass before the mount exists: a process that was started between ended at once."""
    monkeypatch.setattr("stratalog_node.volume.volume_node._PAUSE_S", 0.01)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, **QUICK)
        leaving = Leaving(cluster, has_store=False)
        key = await cluster.shard(1)
        await cluster.append(key, b"value")
        left = cluster.leader(key)
        await leaving.retire(left, RetireMode.VOLUME)
        await leaving.until(step=RetireStep.MOUNT, of=left)
        await leaving.end_the_released()
        assert mount_of(cluster, left) is None
        meta = Refusals(cluster.meta)
        reader: Any = VolumeNode(ProcessSettings(), tmp_path / str(left), "127.0.0.1", 0, meta)  # type: ignore[arg-type]
        starting = asyncio.create_task(reader.start())
        await eventually(lambda: meta.count >= 2 or starting.done())
        assert not starting.done()
        await leaving.run_checks()
        await starting
        await is_served(cluster, left)
        await leaving.until(step=RetireStep.DONE, of=left)
        assert meta.count >= 2
        await reader.close()


async def test_a_directory_whose_mount_does_not_begin_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, **QUICK)
        leaving = Leaving(cluster, has_store=False)
        await leaving.retire(2, RetireMode.VOLUME)
        await cluster.stop(2)  # before it was released
        meta: Any = cluster.meta
        with pytest.raises(NotFound, match="only what was retired in volume mode"):
            await VolumeNode(ProcessSettings(), tmp_path / "2", "127.0.0.1", 0, meta).start()
