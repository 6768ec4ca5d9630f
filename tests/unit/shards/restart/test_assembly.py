"""What a node's shards are made of is given back when they cannot be opened, as it is when they are closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog_node.shards.restart.recovery import Recovery
from support.shard_rig import ShardRig
from support.waiting import eventually


async def _nothing_to_be_read(_: Recovery) -> None:
    raise Unavailable("the disk does not answer")


def _threads() -> int:
    """Without those of the loop's own executor, which makes one more while the others are at work, and keeps it."""
    return sum(not one.name.startswith("asyncio_") for one in threading.enumerate())


async def test_an_opening_that_fails_gives_back_what_it_took_and_the_next_one_finds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"kept")
        await rig.stop()
        before = _threads()
        with monkeypatch.context() as patch:
            patch.setattr(Recovery, "recover_all", _nothing_to_be_read)
            with pytest.raises(Unavailable, match="does not answer"):
                await rig.start()
        await eventually(lambda: _threads() <= before)
        # The lock of the checkpoints is free again, among other things.
        await rig.start()
        assert await rig.read_values(rig.shard(shard)) == [b"kept"]


async def test_every_shard_is_handed_the_same_context_which_never_changes(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        shards = [rig.shard(topic, index) for index in range(3)]
        assert {id(shard.context) for shard in shards} == {id(rig.context)}
        for name in ("catalog", "turn", "events"):
            with pytest.raises(AttributeError):
                setattr(rig.context, name, None)
