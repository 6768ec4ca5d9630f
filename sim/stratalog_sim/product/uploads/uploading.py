"""Segments move to the bucket, local copies are freed, orphans are swept, and all of this is interrupted.

Chunks are small, local copies are freed soon, and sweeps are frequent, with a short grace. In each round one thing goes
wrong in the middle of this work: followers lag while their leader uploads; an uploader dies, is cut off or hangs
between its put and its commit; puts and commits get no answer; the meta service dies just after it has answered; other
nodes make copies of what an absent node had, and one of them dies meanwhile. In three of ten seeds faults of all kinds
happen instead (`faults.py`), and in three the oldest segments are deleted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.metadata import ChangeSet
from stratalog_sim.product.faults import cause_faults, end_faults, roll_all
from stratalog_sim.product.pools import HANGS_UNTIL_S
from stratalog_sim.product.world import LEASE_MS, REPLACE_AFTER_MS, TOPIC, ProductWorld

_ROUNDS: Final = 5
_FIRST_S: Final = 0.6
_BACK_S: Final = 2.0
"""The meta service runs again by then."""
_STORED_S: Final = 30.0
_SWEPT_S: Final = 10.0
_LEASE_S: Final = LEASE_MS / 1_000
_LAG_S: Final = 0.4
"""Short of the time after which a follower is not in sync any more."""
_KINDS: Final = (
    "lags",
    "lags",
    "dies after a put",
    "dies after a put",
    "is cut off after a put",
    "hangs after a put",
    "commits get no answer",
    "puts get no answer",
    "the store refuses",
    "rolls and dies",
    "meta dies",
    "meta dies",
)
_WITHOUT_BUCKET: Final = ("is away", "is away", "rolls and dies", "meta dies")


class Uploading:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._waits_for_put: str | None = None
        """What happens to the node whose next put arrives."""
        self._kills_meta = False
        world.node_settings = {
            "remote_upload_chunk_bytes": 1_024,
            "remote_upload_timeout_ms": 300,
            "remote_orphan_grace_ms": 400,
            "remote_orphan_sweep_interval_ms": 100,
            "remote_delete_delay_ms": 300,
        }
        world.topic_settings = {"local.retention.ms": self._rng.choice(("1", "500", "3600000"))}
        if self._rng.random() < 0.3:
            world.topic_settings["retention.bytes"] = "6000"
        self._has_other_faults = self._rng.random() < 0.3
        world.bucket.on_put = self._put
        world.truth.after_publish.append(self._published)

    async def run(self) -> None:
        world = self._world
        if self._has_other_faults:
            await cause_faults(world)
        else:
            await self._play_rounds()
        if world.has_bucket:
            await self._wait_for_bucket()

    async def _play_rounds(self) -> None:
        world = self._world
        await asyncio.sleep(_FIRST_S)
        for _ in range(_ROUNDS):
            await self._play_round()
            self._join()
            await asyncio.sleep(0.3 + 0.4 * self._rng.random())
        end_faults(world)

    async def _wait_for_bucket(self) -> None:
        """What is sealed now becomes complete; then nothing else lies in the folders of complete segments."""
        world = self._world
        world.start_wanted()
        await asyncio.sleep(_BACK_S)
        await world.stored.wait_until_complete(_STORED_S)
        await world.stored.wait_until_swept(_SWEPT_S)

    async def _play_round(self) -> None:
        world, rng = self._world, self._rng
        kind = rng.choice(_KINDS if world.has_bucket else _WITHOUT_BUCKET)
        node_id = self._leader()
        world.say(f"round: {kind}, node {node_id}")
        match kind:
            case "lags":
                await self._lag(node_id)
            case "dies after a put" | "is cut off after a put" | "hangs after a put":
                self._waits_for_put = kind
                await asyncio.sleep(_LEASE_S * (1 + rng.random()))
                self._waits_for_put = None
            case "commits get no answer":
                world.meta.loses_answers = 0.6
                await asyncio.sleep(0.5 + rng.random())
            case "puts get no answer":
                world.bucket.loses_answers = 0.6
                await asyncio.sleep(0.5 + rng.random())
            case "the store refuses":
                world.bucket.refuses = 0.6
                await asyncio.sleep(0.5 + rng.random())
            case "rolls and dies":
                roll_all(world, node_id)
                await asyncio.sleep(0.2 * rng.random())
                world.kill(node_id, down_s=_LEASE_S * (1 + rng.random()))
            case "is away":
                await self._leave_for_long(node_id)
            case "meta dies":
                for _ in range(2):
                    self._kills_meta = True
                    await asyncio.sleep(0.3 + 0.3 * rng.random())
                self._kills_meta = False

    def _leader(self) -> int:
        """Of a shard of the topic; any node where there is none."""
        table = self._world.meta.table
        leaders = []
        if table is not None:
            topics = {one.topic_id for one in table.state.topics.values() if one.name == TOPIC}
            leaders = [table.state.shard(key).last.leader for key in table.state.shards if key.topic_id in topics]
        running = [one for one in leaders if one is not None and self._world.hosts[one].node is not None]
        return self._rng.choice(running or list(self._world.hosts))

    async def _lag(self, leader: int) -> None:
        """Its followers' requests do not arrive: what it appends stays above its high watermark."""
        world = self._world
        for _ in range(2):
            others = [name for name in map(self._name, world.hosts) if name != self._name(leader)]
            world.network.cut.update({(one, self._name(leader)): None for one in others})
            await asyncio.sleep(_LAG_S)
            self._join()
            await asyncio.sleep(0.1 + 0.2 * self._rng.random())

    async def _leave_for_long(self, node_id: int) -> None:
        """Others make copies of what it had. One of them dies meanwhile."""
        world, rng = self._world, self._rng
        away_s = REPLACE_AFTER_MS / 1_000
        world.kill(node_id, down_s=away_s + 0.5 + rng.random())
        await asyncio.sleep(away_s + 0.3 * rng.random())
        others = [one for one in world.hosts if one != node_id]
        if rng.random() < 0.5:
            world.kill(rng.choice(others), down_s=0.2 + _LEASE_S * rng.random())
        await asyncio.sleep(1.0)

    # In the middle of an upload -------------------------------------------------------------------------------------
    def _put(self, name: str, key: str) -> None:
        kind, node_id = self._waits_for_put, next((n for n in self._world.hosts if self._name(n) == name), 0)
        if kind is None or not node_id or "/claims/" in key:
            return
        self._waits_for_put = None
        self._world.say(f"node {node_id} {kind}: {key.rsplit('/', 1)[-1]}")
        self._world.after(0.06 * self._rng.random(), self._interrupt, node_id, kind)

    def _interrupt(self, node_id: int, kind: str) -> None:
        world, rng, name = self._world, self._rng, self._name(node_id)
        match kind:
            case "dies after a put":
                world.kill(node_id, down_s=0.1 + 2 * _LEASE_S * rng.random())
            case "is cut off after a put":
                links = [("meta", name)] if rng.random() < 0.5 else [("meta", name), (name, "meta")]
                world.network.cut.update(dict.fromkeys(links))
            case "hangs after a put":
                HANGS_UNTIL_S[name] = world.loop.now_s + _LEASE_S * (0.5 + rng.random())

    def _published(self, table: ShardTable, change_set: ChangeSet) -> None:
        if self._kills_meta:
            self._kills_meta = False
            self._world.after(0.01 * self._rng.random(), self._world.restart_meta, 0.05 + 0.2 * self._rng.random())

    # --------------------------------------------------------------------------------------------------------------
    def _name(self, node_id: int) -> str:
        return self._world.hosts[node_id].machine.name

    def _join(self) -> None:
        world = self._world
        world.network.cut.clear()
        world.network.join()
        world.meta.loses_answers = 0.01
        world.bucket.loses_answers = 0.02
        world.bucket.refuses = 0.0
