"""A sweep that runs while an upload is being committed: what becomes part of the log in that moment is not an
orphan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.model.commands.table_commands import Command, CommitParts, CompleteRemote
from support.gated_meta import perform_instead
from support.tier_rig import TierRig
from support.waiting import eventually

LONG_MS = 3_600_000


@pytest.mark.fault("node-dies-put-commit")
@pytest.mark.parametrize(
    ("kind", "batches"), [(CommitParts, 1), (CommitParts, 70), (CompleteRemote, 1)],
    ids=["a bundle", "a chunk", "index and manifest"],
)  # fmt: skip
async def test_what_is_committed_between_the_reading_of_metadata_and_the_verdict_stays(
    kind: type[Command[Any]], batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put is older than every grace, metadata is read without it, then the commit lands: F27, and F31's reverse."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        may_commit, asked = asyncio.Event(), asyncio.Event()
        perform, snapshot = rig.meta.perform, rig.meta.snapshot

        async def commit_late(command: Command[Any]) -> Any:
            asked.set()
            await may_commit.wait()
            return await perform(command)

        async def snapshot_before_the_commit() -> Any:
            found = await snapshot()
            may_commit.set()
            await eventually(is_committed)
            return found

        def is_committed() -> bool:
            segment = shard.segments[0]
            return rig.is_complete(segment) if kind is CompleteRemote else segment.remote.commit_offset > 0

        perform_instead(monkeypatch, rig.meta, kind, commit_late)
        for _ in range(batches):
            rig.append(shard, 1_000)
        if kind is CompleteRemote:
            await rig.seal(shard)
        await rig.until(asked.is_set)
        rig.advance(LONG_MS)
        monkeypatch.setattr(rig.meta, "snapshot", snapshot_before_the_commit)
        await rig.janitor().sweep_now()
        monkeypatch.undo()
        await rig.check()
