"""One node's shards and their bucket through any sequence of appends, rolls, uploads, crashes, power cuts, deletions
and reads, against a plain model of the log: what was acknowledged is there, in order, once; what was read once is read
again, from whichever tier.

The model knows, for each shard, which value was acknowledged at which offset and what was read where.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.model.commands.table_commands import RollSegment, SealSegment
from stratalog.model.errors import StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState
from stratalog_node.shards.flush import flusher, shared_journal
from stratalog_node.shards.log.shard_log import ShardLog
from support.gated_meta import Call
from support.shard_rig import Asked
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

SHARDS = 3


class Model:
    """What one shard must hold."""

    def __init__(self) -> None:
        self.offered: list[tuple[list[bytes], Asked]] = []
        self.acknowledged: dict[int, bytes] = {}
        self.read: dict[int, bytes] = {}
        self.high_watermark = 0
        self.log_start = 0
        self.sequence = 0
        self.last_idempotent: tuple[list[bytes], int, Asked] | None = None

    def take_answers(self) -> None:
        waiting = []
        for values, asked in self.offered:
            if not asked.is_answered:
                waiting.append((values, asked))
            elif asked.is_acknowledged:
                for number, value in enumerate(values):
                    known = self.acknowledged.setdefault(asked.offset + number, value)
                    assert known == value, f"two values acknowledged at {asked.offset + number}"
        self.offered = waiting


class ShardLife(RuleBasedStateMachine):
    policy = "replicated"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.models = [Model() for _ in range(SHARDS)]
        self.number = 0
        self.sizes = (shared_journal.JOURNAL_BYTES, flusher.DIRECT_FILES)
        shared_journal.JOURNAL_BYTES, flusher.DIRECT_FILES = 3000, 1

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def within() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self.runner.run(within())

    @initialize()
    def begin(self) -> None:
        async def work() -> None:
            self.rig = TieredShardRig(Path(self.folder.name))
            await self.rig.__aenter__()
            topic = await self.rig.create_topic(shards=SHARDS, segment_bytes=500, flush_policy=self.policy)
            self.keys = [ShardKey(topic.topic_id, index) for index in range(SHARDS)]

        self.run(work())

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.run(self.rig.__aexit__())
        self.runner.close()
        self.folder.cleanup()
        shared_journal.JOURNAL_BYTES, flusher.DIRECT_FILES = self.sizes

    def shard(self, index: int) -> ShardLog:
        shard = self.rig.shards.get(self.keys[index])
        assert shard is not None
        return shard

    def values(self, count: int, size: int) -> list[bytes]:
        first, self.number = self.number, self.number + count
        return [b"%05d" % number + b"." * size for number in range(first, first + count)]

    # Writing ----------------------------------------------------------------------------------------------------------
    @rule(
        writes=st.lists(
            st.tuples(st.integers(0, SHARDS - 1), st.integers(1, 3), st.integers(0, 150), st.sampled_from([-1, 1, 0])),
            min_size=1,
            max_size=6,
        )
    )
    def produce(self, writes: list[tuple[int, int, int, int]]) -> None:
        """All in one turn."""

        async def work() -> None:
            for index, count, size, acks in writes:
                values = self.values(count, size)
                asked = self.rig.offer(self.shard(index), *values, acks=acks)
                if acks:
                    self.models[index].offered.append((values, asked))
            self.rig.tick()

        self.run(work())

    @rule(index=st.integers(0, SHARDS - 1), count=st.integers(1, 3))
    def produce_idempotently(self, index: int, count: int) -> None:
        async def work() -> None:
            model = self.models[index]
            if model.last_idempotent is not None and not model.last_idempotent[2].is_acknowledged:
                return  # outcome not known: a real producer would repeat it first, as `repeat` does
            values = self.values(count, 10)
            asked = self._idempotent(index, values, model.sequence)
            model.last_idempotent = (values, model.sequence, asked)
            model.sequence += count

        self.run(work())

    @precondition(lambda self: any(model.last_idempotent for model in self.models))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The same batch again, after an answer or instead of one: it must not be in the log twice."""
        index = data.draw(st.sampled_from([i for i, model in enumerate(self.models) if model.last_idempotent]))

        async def work() -> None:
            model = self.models[index]
            assert model.last_idempotent is not None
            values, sequence, before = model.last_idempotent
            asked = self._idempotent(index, values, sequence)
            if not before.is_acknowledged:
                model.last_idempotent = (values, sequence, asked)

        self.run(work())

    def _idempotent(self, index: int, values: list[bytes], sequence: int) -> Asked:
        asked = self.rig.append(
            self.shard(index), *values, producer_id=50 + index, producer_epoch=0, base_sequence=sequence
        )
        self.models[index].offered.append((values, asked))
        return asked

    @rule(index=st.integers(0, SHARDS - 1))
    def roll(self, index: int) -> None:
        async def work() -> None:
            self.shard(index).ask_roll(self.rig.clock())

        self.run(work())

    # The meta service ---------------------------------------------------------------------------------------------
    @rule(kind=st.sampled_from([RollSegment, SealSegment]))
    def hold(self, kind: Call) -> None:
        if not self.rig.meta.is_held(kind):
            self.rig.meta.hold(kind)

    @rule()
    def release_all(self) -> None:
        async def work() -> None:
            self.rig.meta.open_all()
            await asyncio.sleep(0.002)

        self.run(work())

    @rule(kind=st.sampled_from([RollSegment, SealSegment]))
    def lose_an_answer(self, kind: Call) -> None:
        self.rig.meta.lose_answer(kind)

    @rule()
    def let_time_pass(self) -> None:
        async def work() -> None:
            await asyncio.sleep(0.003)
            self.rig.clock.now_ms += 1000

        self.run(work())

    # Ends of a life -------------------------------------------------------------------------------------------------
    @rule(how=st.sampled_from(["crash", "stop", "power_cut"]))
    def restart(self, how: str) -> None:
        if how == "power_cut" and self.policy != "fsync":
            how = "crash"

        async def work() -> None:
            await getattr(self.rig, how)()
            for model in self.models:
                model.take_answers()
                model.offered.clear()
            self.rig.meta.open_all()
            await self.rig.start()
            for index in range(SHARDS):
                # Some wait for a table of producers in the bucket: it is not read before the node serves.
                await eventually(lambda: self.shard(index).stop is None)  # noqa: B023

        self.run(work())

    # Deleting and reading -------------------------------------------------------------------------------------------
    @rule(index=st.integers(0, SHARDS - 1), back=st.integers(0, 5))
    def delete_records(self, index: int, back: int) -> None:
        async def work() -> None:
            shard, model = self.shard(index), self.models[index]
            model.log_start = await shard.delete_records_before(max(shard.high_watermark - back, 0))
            assert model.log_start <= shard.high_watermark

        self.run(work())

    @rule()
    def upload(self) -> None:
        async def work() -> None:
            if not self.rig.meta.is_held(RollSegment):  # what is not confirmed is not committed either
                self.rig.clock.now_ms += 100  # the write lock of the life before is over
                await self.rig.uploaded()

        self.run(work())

    @rule(index=st.integers(0, SHARDS - 1))
    def free_the_oldest_copy(self, index: int) -> None:
        """Of those that are in the bucket, as local retention does."""

        async def work() -> None:
            shard = self.shard(index)
            for segment in shard.segments:
                if segment.remote.state is RemoteState.COMPLETE and segment.epoch in shard.copies:
                    await self.rig.copies.free_local(shard, segment.key)
                    return

        self.run(work())

    @rule(index=st.integers(0, SHARDS - 1), back=st.integers(0, 30), max_bytes=st.integers(1, 2000))
    def read(self, index: int, back: int, max_bytes: int) -> None:
        async def work() -> None:
            shard, model = self.shard(index), self.models[index]
            start = max(shard.log_start_offset, shard.high_watermark - back)
            self._check_read(model, start, await self.rig.read_values(shard, start, max_bytes))

        self.run(work())

    @rule(index=st.integers(0, SHARDS - 1), ahead=st.integers(0, 3))
    def read_what_is_not_there(self, index: int, ahead: int) -> None:
        async def work() -> None:
            shard = self.shard(index)
            assert await shard.read(shard.high_watermark + ahead, 1000) == []

        self.run(work())

    @staticmethod
    def _check_read(model: Model, start: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, start):
            assert model.read.setdefault(offset, value) == value, f"offset {offset} changed"
            assert model.acknowledged.get(offset, value) == value, f"another value was acknowledged at {offset}"

    # What holds always ----------------------------------------------------------------------------------------------
    @invariant()
    def the_high_watermark_never_falls_and_covers_what_was_acknowledged(self) -> None:
        if not hasattr(self, "keys"):
            return
        for index, model in enumerate(self.models):
            model.take_answers()
            shard = self.shard(index)
            assert shard.stop is None, shard.stop
            assert shard.high_watermark <= shard.end_offset
            highest = max(model.acknowledged, default=-1)
            if self.rig._is_alive and highest >= shard.high_watermark:
                # Right after a restart a roll that meta has not confirmed again may hold it back for a moment.
                self.run(eventually(lambda: shard.high_watermark > highest))  # noqa: B023
            model.high_watermark = max(model.high_watermark, shard.high_watermark)

    def check_everything(self) -> None:
        async def work() -> None:
            self.rig.meta.open_all()
            for index, model in enumerate(self.models):
                shard = self.shard(index)
                await eventually(lambda: shard.high_watermark == shard.end_offset)  # noqa: B023
                start = shard.log_start_offset
                values = await self.rig.read_values(shard, start)
                model.take_answers()
                self._check_read(model, start, values)
                assert len(set(values)) == len(values), "a batch is in the log twice"
                missing = {o: v for o, v in model.acknowledged.items() if o >= start and values[o - start] != v}
                assert not missing, missing
            await self.rig.all_sealed()

        try:
            self.run(work())
        except StratalogError as error:
            raise AssertionError(f"the log cannot be read: {error}") from error


class ReplicatedShardLife(ShardLife):
    @rule()
    def check(self) -> None:
        self.check_everything()


class FsyncShardLife(ShardLife):
    policy = "fsync"

    @rule()
    def check(self) -> None:
        self.check_everything()


_SETTINGS = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)
TestReplicatedShardLife = ReplicatedShardLife.TestCase
TestReplicatedShardLife.settings = _SETTINGS
TestFsyncShardLife = FsyncShardLife.TestCase
TestFsyncShardLife.settings = _SETTINGS
