"""Sweeps orphans of the object store: what this node put, or one without a lease, and no metadata name. Stands in for
`tier/sweep/orphan_sweep.py` and `tier/sweep/expired_writers.py`: listing first, then what is protected, then the
metadata."""

from __future__ import annotations

from typing import Protocol

from stratalog.machines.tiering.orphans import ListedObject, OrphanRules, SegmentFacts, Verdict, classify_object
from stratalog.machines.tiering.upload_duty import sweeper_of
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, Snapshot
from stratalog.model.segment import Segment
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Delete, Get, ListObjects, StoredManifest, StoredObject
from stratalog_sim.node.shell import NodeShell
from stratalog_sim.service.meta import Deleted, Watch

GRACE_MS = 400
_POLL_MS = 900
_SWEEPER = "orphan-sweep"
_EVERY_LIFE = tuple("0123456789abcdef")


class UploadsOfNode(Protocol):
    lock: Lock | None

    def is_protected(self, object_key: str) -> bool: ...


class Sweeping:
    def __init__(self, node: NodeShell, uploads: UploadsOfNode) -> None:
        self._node = node
        self._uploads = uploads

    def run(self) -> Task:
        """Without an end."""
        while True:
            yield Sleep(_POLL_MS + self._node.scheduler.rng.randrange(400))
            try:
                yield from self._sweep()
            except StratalogError:
                continue

    def _sweep(self) -> Task:
        node, lock = self._node, self._uploads.lock
        if lock is None:
            return
        objects = yield Ask("store", ListObjects())
        suspects = [one for stored in objects if (one := _listed(stored)) is not None]
        protected = {one.key for one in suspects if self._uploads.is_protected(one.key)}
        epochs = {node.node_id: lock.epoch}
        for owner in self._owners():
            last = yield from self._last_epoch(owner)
            if last is not None:
                epochs[owner] = last
        snapshot = yield Ask("meta", Watch(-1))
        deleted = yield Ask("meta", Deleted())
        facts: dict[SegmentKey, SegmentFacts] = {}
        orphans: list[str] = []
        for one in suspects:
            if one.segment not in facts:
                facts[one.segment] = yield from self._facts(one.segment, snapshot, deleted)
            rules, now_ms = OrphanRules(epochs, GRACE_MS), node.scheduler.now_ms
            if classify_object(one, facts[one.segment], rules, protected.__contains__, now_ms) is Verdict.ORPHAN:
                orphans.append(one.key)
        # Manifests first: none may ever name an object that is gone.
        for key in sorted(orphans, key=lambda key: not key.startswith("manifest")):
            node.judge.deleted_object(key)
            node.tell(f"sweeps {key}")
            yield Ask("store", Delete(key))

    def _last_epoch(self, owner: int):  # type: ignore[no-untyped-def]  # a task with a result
        """Under which that node may have written last. None while the lease of its lock lasts."""
        try:
            lock = yield self._node.ask_meta(commands.AcquireLock(f"tier/{owner}", _SWEEPER, 1, _EVERY_LIFE))
            return lock.epoch - 1
        except Rejected:
            return None

    def _owners(self) -> list[int]:
        """Nodes without a lease whose leavings are this node's to sweep, as far as it has heard."""
        nodes, holder_of = self._node.view.nodes, self._node.view.holder_of
        living = {node_id for node_id, node in nodes.items() if node.is_alive}
        lost = [node_id for node_id in nodes if node_id not in living and node_id != self._node.node_id]
        return [node_id for node_id in lost if sweeper_of(node_id, living, holder_of(node_id)) == self._node.node_id]

    def _facts(self, key: SegmentKey, snapshot: Snapshot, deleted: tuple[Segment, ...]):  # type: ignore[no-untyped-def]
        shard = next((one for one in snapshot.shards if one.key == key.shard_key), None)
        segment = next((one for one in shard.segments if one.key == key), None) if shard is not None else None
        gone = any(one.key == key for one in deleted)
        named: set[str] = set()
        if segment is not None:
            named = {part.object_key for part in segment.remote.parts}
            if segment.remote.manifest_key is not None:
                manifest = yield Ask("store", Get(segment.remote.manifest_key))
                assert isinstance(manifest, StoredManifest)
                named |= {segment.remote.manifest_key, *manifest.parts}
        start = shard.log_start_offset if shard is not None else None
        return SegmentFacts(None if gone else segment, frozenset(named), gone, start, is_purged=False)


def _listed(stored: StoredObject) -> ListedObject | None:
    """By what its name says. None: a bundle, of which others decide."""
    kind, _, rest = stored.key.partition("-n")
    if kind not in ("chunk", "manifest"):
        return None
    node_id, lock_epoch = map(int, rest.split(".")[:2])
    is_chunk = not isinstance(stored.body, StoredManifest)
    segment = stored.body.key if isinstance(stored.body, StoredManifest) else stored.body[0].key
    to_offset = -1 if isinstance(stored.body, StoredManifest) else stored.body[-1].batches[-1].end_offset
    return ListedObject(stored.key, segment, node_id, lock_epoch, stored.modified_ms, is_chunk, to_offset)
