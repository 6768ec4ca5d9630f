"""What ages: log starts that move, local copies that the object store makes needless, segments that are deleted."""

from __future__ import annotations

from stratalog.machines.tiering.retention import RetentionLimits, expired, local_copies_to_free
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import NotFound, StratalogError
from stratalog_sim.environment.process import Ask, Task
from stratalog_sim.environment.store import Delete, Get, StoredManifest
from stratalog_sim.node.shard import LeadingNode, ShardShell
from stratalog_sim.service.meta import Deleted

_META_TIMEOUT_MS = 300


class Retaining:
    def __init__(self, node: LeadingNode, limits: RetentionLimits) -> None:
        self._node = node
        self._retention = limits

    def retain(self, shard: ShardShell) -> Task:
        segments = self._node.view.segments(shard.key)
        active_bytes = sum(leader.size_bytes for leader in shard.leaders())
        move = expired(segments, active_bytes, self._retention, self._node.now_ms)
        is_leader = bool(segments) and segments[-1].leader == self._node.node_id
        if is_leader and move is not None and move.offset > self._node.view.log_start(shard.key):
            try:
                yield self._node.ask_meta(commands.AdvanceLogStart(shard.key, move.offset))
            except StratalogError:
                return
        freed = local_copies_to_free(
            [one for one in self._node.view.segments(shard.key) if self._node.node_id in one.local_nodes],
            lambda key: key in self._node.disk.files,
            active_bytes,
            self._retention,
            self._node.now_ms,
        )
        for one in freed:
            try:
                yield self._node.ask_meta(commands.ForgetLocal((one.key,), self._node.node_id))
            except StratalogError:
                continue
            if one.key in self._node.disk.files:
                self._node.judge.freed(self._node.node_id, one.key)
                self._node.tell(f"frees its copy of epoch {one.key.epoch}: {one.reason}")
                self._node.disk.remove(one.key)

    def delete(self) -> Task:
        """Files and objects of DELETED segments, then their metadata."""
        try:
            deleted = yield Ask("meta", Deleted(), _META_TIMEOUT_MS)
        except StratalogError:
            return
        for segment in deleted:
            if not self._node.keeps(segment) or self._node.scheduler.rng.random() < 0.5:
                continue
            keys = [part.object_key for part in segment.remote.parts if not part.object_key.startswith("bundle")]
            try:
                if segment.remote.manifest_key is not None:
                    manifest = yield Ask("store", Get(segment.remote.manifest_key))
                    if isinstance(manifest, StoredManifest):
                        keys += [segment.remote.manifest_key, *manifest.parts]
                for key in keys:
                    self._node.judge.deleted_object(key)
                    yield Ask("store", Delete(key))
                if segment.key in self._node.disk.files:
                    self._node.judge.freed(self._node.node_id, segment.key)
                    self._node.disk.remove(segment.key)
                yield self._node.ask_meta(commands.PurgeSegments((segment.key,)))
            except NotFound:
                continue
            except StratalogError:
                return
