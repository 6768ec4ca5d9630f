"""How full a disk is, and what of it the segments take."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratalog_node.shards.log.disk_usage import LocalDisk, usage_of
from stratalog_node.slices import UNITS_PER_SLICE
from support.loop_turns import Turns


def test_blocks_kept_for_the_superuser_are_neither_used_nor_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thirds of this disk are kept back. Of what a node may use, half is free, and not a sixth."""
    told = SimpleNamespace(f_frsize=4096, f_blocks=600, f_bfree=500, f_bavail=100)
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    assert usage_of(tmp_path) == (str(tmp_path), 200 * 4096, 100 * 4096)


def test_what_is_used_is_what_df_shows(tmp_path: Path) -> None:
    disk = shutil.disk_usage(tmp_path)
    usage = usage_of(tmp_path)
    assert 0 < usage.usable_bytes <= usage.total_bytes <= disk.total
    assert usage.total_bytes - usage.usable_bytes == pytest.approx(disk.used, abs=64 << 20)


class Shards:
    """20,000 shards with a file of 10 bytes each, and how many of them were looked at."""

    def __init__(self) -> None:
        self.seen = 0

    def all(self) -> list[Shards]:
        return [self] * 20_000

    copies: tuple[()] = ()

    def local_size_bytes(self) -> int:
        self.seen += 1
        return 10


async def test_other_work_runs_while_thousands_of_shards_are_added_up(tmp_path: Path) -> None:
    shards = Shards()
    async with Turns(lambda: shards.seen) as turns:
        assert await LocalDisk(tmp_path, shards).local_bytes() == 200_000  # type: ignore[arg-type]  # has what is asked
    assert turns.most <= UNITS_PER_SLICE
