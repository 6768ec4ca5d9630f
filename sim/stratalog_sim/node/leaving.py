"""What a node does for nodes that leave: hands on what it leads, looks whether all is there, writes down what was held.
Stands in for `storage_node/stratalog_node/leaving` and the rolls of `shards/seal/successors.py`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from stratalog.machines.leading.leader_events import BatchesReceived, RollRequested
from stratalog.machines.plans.verification_turns import inventory_writer, node_on_turn, pause_before_check_ms
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.retirement_commands import ReportInventory, ReportSighting
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import NextReplicas, RemoteState, Segment, SegmentState
from stratalog_sim.environment.disk import digest_of
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Get, Put, StoredInventory, StoredManifest
from stratalog_sim.node.serving import PeerRead
from stratalog_sim.node.shard import LeadingNode, ShardShell
from stratalog_sim.service.retiring import VERIFY_MS

_HAND_ON_MS = 150
_POLL_MS = 100
_PEER_MS = 200


@dataclass(slots=True)
class Seen:
    """What one check found."""

    segments: int = 0
    unconfirmed: list[SegmentKey] = field(default_factory=list)
    is_differing: bool = False
    words: str = ""

    def doubt(self, key: SegmentKey, why: str, *, is_differing: bool = False) -> None:
        self.words = self.words or why
        self.unconfirmed.append(key)
        self.is_differing |= is_differing


class Leaving:
    def __init__(self, node: LeadingNode) -> None:
        self._node = node
        self._rolling: dict[SegmentKey, None] = {}
        self._known: dict[int, tuple[Retirement, int]] = {}
        """Of each retirement the record whose sightings were new last, and when."""
        self._attempt = 0

    # Rolls ----------------------------------------------------------------------------------------------------------
    def hand_on(self) -> Task:
        """Without an end."""
        node = self._node
        while True:
            yield Sleep(_HAND_ON_MS)
            leaving = {one.node_id for one in node.view.nodes.values() if one.is_leaving}
            if not leaving or not any(one.is_alive and not one.is_leaving for one in node.view.nodes.values()):
                continue
            for key, shard in list(node.shards.items()):
                active = node.view.active(key)
                if active is not None and active.leader == node.node_id and leaving.intersection(active.replicas):
                    self._roll_to_new_successor(shard, active.key, None)

    def roll_to_other_successor(self, active: Segment) -> None:
        """To a successor that is chosen again, though all who were named stay."""
        shard = self._node.shards.get(active.key.shard_key)
        if shard is not None:
            self._roll_to_new_successor(shard, active.key, active.handed.prepared)

    def _roll_to_new_successor(self, shard: ShardShell, key: SegmentKey, instead_of: NextReplicas | None) -> None:
        if key in self._rolling or (shard.chain.stop is not None and shard.chain.stop.ends_leading):
            return
        if shard.chain.active is None:
            shard.step(BatchesReceived([]))
        if shard.chain.active is not None and shard.chain.active.key == key:
            self._rolling[key] = None
            self._node.spawn(self._roll(shard, key, instead_of))

    def _roll(self, shard: ShardShell, key: SegmentKey, instead_of: NextReplicas | None) -> Task:
        with suppress(StratalogError):
            segment = yield self._node.ask_meta(commands.PrepareSegment(key, instead_of))
            shard.named = {key: segment.handed.prepared}
            shard.step(RollRequested(is_empty_too=True))
        del self._rolling[key]

    # Looks ----------------------------------------------------------------------------------------------------------
    def look_after(self) -> Task:
        """Without an end."""
        while True:
            yield Sleep(_POLL_MS)
            for node in list(self._node.view.nodes.values()):
                with suppress(StratalogError):
                    yield from self._look_at(node)

    def _look_at(self, node: Node) -> Task:
        record = node.retirement
        if record is None or record.step not in (RetireStep.VERIFY, RetireStep.SNAPSHOT):
            self._known.pop(node.node_id, None)
        elif record.step is RetireStep.VERIFY and self._is_due(node, record):
            yield from self._sight(node, record)
        elif record.step is RetireStep.SNAPSHOT and record.inventory_key is None and self._is_writer(node):
            yield from self._write_inventory(node, record)

    def _is_due(self, node: Node, record: Retirement) -> bool:
        now_ms = self._node.scheduler.now_ms
        known = self._known.get(node.node_id)
        if known is None or (known[0].begun_ms, known[0].sightings) != (record.begun_ms, record.sightings):
            known = self._known[node.node_id] = record, now_ms
        if node_on_turn(node, self._node.view.nodes.values()) != self._node.node_id:
            return False
        return now_ms - known[1] >= pause_before_check_ms(record, VERIFY_MS)

    def _is_writer(self, node: Node) -> bool:
        return inventory_writer(node, self._node.view.nodes.values()) == self._node.node_id

    def _segments_of(self, node_id: int) -> list[Segment]:
        shards = self._node.view.shards.values()
        listed = [one for shard in shards for one in shard.segments.values()]
        return [one for one in listed if node_id in one.local_nodes or node_id in one.replicas]

    def _sight(self, node: Node, record: Retirement) -> Task:
        seen = Seen()
        for segment in [one for one in self._segments_of(node.node_id) if one.end_offset != one.base_offset]:
            seen.segments += 1
            try:
                yield from self._confirm(node, record, segment, seen)
            except StratalogError as error:
                seen.doubt(segment.key, str(error))
        self._node.judge.leaving.looked(node.node_id, self._node.scheduler.now_ms, is_clean=not seen.unconfirmed)
        yield self._node.ask_meta(
            ReportSighting(
                node.node_id,
                record.storage_id,
                record.begun_ms,
                seen.segments,
                tuple(seen.unconfirmed),
                len(seen.unconfirmed),
                seen.is_differing,
                seen.words,
                record.last_check_ms,
            )
        )

    def _confirm(self, node: Node, record: Retirement, segment: Segment, seen: Seen) -> Task:
        if segment.state is not SegmentState.SEALED or segment.seal is None:
            seen.doubt(segment.key, f"it is {segment.state.name}")
        elif record.mode is RetireMode.VOLUME and node.node_id in segment.local_nodes:
            file = self._node.disk.files.get(segment.key)
            if file is None or digest_of(file.whole(segment.key)) != segment.seal.digest:
                seen.doubt(segment.key, "its file is another", is_differing=True)
        elif segment.remote.state is RemoteState.COMPLETE:
            yield from self._confirm_objects(segment, seen)
        else:
            yield from self._confirm_copies(node, segment, seen)

    def _confirm_objects(self, segment: Segment, seen: Seen) -> Task:
        manifest = yield Ask("store", Get(segment.remote.manifest_key or ""))
        if not isinstance(manifest, StoredManifest) or segment.seal is None or manifest.digest != segment.seal.digest:
            seen.doubt(segment.key, "its manifest is another", is_differing=True)
            return
        for name in manifest.parts:
            yield Ask("store", Get(name))

    def _confirm_copies(self, node: Node, segment: Segment, seen: Seen) -> Task:
        own, view = self._node, self._node.view
        staying = {one.node_id for one in view.nodes.values() if one.is_alive and not one.is_leaving}
        confirmed = 0
        for holder in [one for one in segment.local_nodes if one != node.node_id and one in staying]:
            if holder == own.node_id:
                confirmed += segment.key in own.disk.files
                continue
            with suppress(StratalogError):
                asked = PeerRead(segment.key, segment.base_offset)
                confirmed += bool((yield Ask(f"node-{holder}", asked, _PEER_MS)))
        topic = view.topics.get(segment.key.topic_id)
        wanted = min(topic.replication_factor if topic is not None else 1, len(staying))
        if confirmed < max(wanted, 1):
            seen.doubt(segment.key, f"{confirmed} of {wanted} copies answered")

    # The inventory --------------------------------------------------------------------------------------------------
    def _write_inventory(self, node: Node, record: Retirement) -> Task:
        """Create-only, under a name of this try; what was written is read back before it counts."""
        own = self._node
        if not own.has_store:
            return
        self._attempt += 1
        name = f"inventory-n{node.node_id}.{record.begun_ms}-by{own.node_id}.{own.life.epoch}.{self._attempt}"
        body = StoredInventory(tuple((one.key, one.end_offset) for one in self._segments_of(node.node_id)))
        with suppress(StratalogError):  # the object may be there in spite of the error
            yield Ask("store", Put(name, body))
        if (yield Ask("store", Get(name))) == body:
            yield own.ask_meta(ReportInventory(node.node_id, record.storage_id, record.begun_ms, name))
