"""Checks whether the data that a leaving node held is where the metadata say: the objects, the copies on other nodes,
or the files of its own volume.

Data that cannot be read now is *unconfirmed*, and so is data that is in no known place: nothing is taken on trust,
because the answer decides whether the last copy may go. Lives on the event loop; files are read on disk threads.
Cost: for each segment in the object store a read of its manifest and a HEAD of each object that it names; in volume
mode a read of every file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.model.counting import counted
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node
from stratalog.model.retirement import RetireMode
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, check_named_objects, read_manifest
from stratalog_node.check.local_segment import check_segment_file
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.replication.peer_reads import NodePeerReads
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory

_AT_ONCE: Final = 8
_NAMED: Final = 10
_WORDS: Final = 400


@dataclass(slots=True)
class Verified:
    """The result of one check."""

    segments: int = 0
    unconfirmed: list[SegmentKey] = field(default_factory=list)
    """The first of them."""
    unconfirmed_count: int = 0
    is_differing: bool = False
    words: str = ""

    def doubt(self, key: SegmentKey, why: str, *, is_differing: bool = False) -> None:
        self.words = self.words or why[:_WORDS]
        self.unconfirmed += [key][: _NAMED - len(self.unconfirmed)]
        self.unconfirmed_count += 1
        self.is_differing |= is_differing


class Differs(Exception):
    """What is there is something else."""


class NodeVerifier:
    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        shards: ShardDirectory,
        layout: NodeLayout,
        threads: Callable[[], DiskThreads],
        store: ObjectStore | None,
        peers: NodePeerReads,
        cluster_id: str,
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._catalog = catalog
        self._shards = shards
        self._layout = layout
        self._threads = threads
        self._store = store
        self._peers = peers

    def segments_of(self, node_id: int) -> list[Segment]:
        """What the metadata list there and is not deleted."""
        return [
            segment
            for key in list(self._catalog.shard_keys())
            for segment in self._catalog.segments(key)
            if node_id in segment.local_nodes or node_id in segment.replicas
        ]

    async def verify(self, node: Node) -> Verified:
        """At all that the node held. Raises nothing that concerns one segment."""
        seen = Verified()
        assert node.retirement is not None, "it leaves"
        segments = [one for one in self.segments_of(node.node_id) if one.end_offset != one.base_offset]
        for start in range(0, len(segments), _AT_ONCE):
            some = segments[start : start + _AT_ONCE]
            await asyncio.gather(*(self._confirm(node, segment, seen) for segment in some))
        return seen

    async def _confirm(self, node: Node, segment: Segment, seen: Verified) -> None:
        seen.segments += 1
        assert node.retirement is not None
        try:
            if segment.state is not SegmentState.SEALED:
                raise NotFound(f"{segment.key} is {segment.state}: only a sealed segment can be confirmed")
            if node.retirement.mode is RetireMode.VOLUME and node.node_id in segment.local_nodes:
                await self._confirm_file(segment)
            elif segment.remote.state is RemoteState.COMPLETE and not self._is_read_from_copies(node, segment):
                await self._confirm_objects(segment)
            else:
                await self._confirm_copies(node, segment)
        except (Differs, Corrupt) as error:
            seen.doubt(segment.key, str(error), is_differing=True)
        except StratalogError as error:
            seen.doubt(segment.key, str(error))

    def _is_read_from_copies(self, node: Node, segment: Segment) -> bool:
        """Whether readers lose a copy with that node, and are not served from the object store instead."""
        is_holder = node.node_id in segment.local_nodes
        return is_holder and not self._catalog.reads_bucket(segment.key.topic_id)

    async def _confirm_objects(self, segment: Segment) -> None:
        """The manifest that the metadata name, and every object that it names, at its length."""
        if self._store is None:
            raise NotFound(f"node {self._node_id} has no object store to check it in: start it with --bucket")
        if segment.remote.manifest_key is None:
            raise Differs(f"{segment.key} is complete and has no manifest")
        if segment.seal is None:
            raise Differs(f"{segment.key} is complete and has no seal record")
        manifest = await read_manifest(self._store, ExpectedManifest.of_segment(self._cluster_id, segment))
        sizes = {name: (await self._store.head(name)).size_bytes for name in manifest.object_sizes}
        check_named_objects(manifest, ObjectNames("", self._cluster_id).segment_prefix(segment.key), sizes)

    async def _confirm_copies(self, node: Node, segment: Segment) -> None:
        """Asks copies on staying nodes for their first batch, until as many as the topic has replicas have answered."""
        topic = self._catalog.topic_by_id(segment.key.topic_id)
        staying = self._staying()
        holders = [one for one in segment.local_nodes if one != node.node_id and one in staying]
        wanted = min(wanted_copies(topic, segment) if topic is not None else 1, len(staying))
        confirmed, why = 0, "no other node has it"
        for holder in holders:
            try:
                await self._confirm_copy(segment, holder)
                confirmed += 1
            except StratalogError as error:
                why = str(error)
        if confirmed < max(wanted, 1):
            raise NotFound(f"{confirmed} of {counted(wanted, 'copy')} of {segment.key} answered: {why}")

    async def _confirm_copy(self, segment: Segment, holder: int) -> None:
        if holder != self._node_id:
            await self._peers.read(segment, [holder], segment.base_offset, 1)
            return
        shard = self._shards.get(segment.key.shard_key)
        copy = shard.copies.get(segment.epoch) if shard is not None else None
        if copy is None or copy.key != segment.key or copy.damage is not None:
            raise NotFound(f"node {holder} has no whole copy of {segment.key}")

    async def _confirm_file(self, segment: Segment) -> None:
        path = self._layout.segment(segment.key)
        assert segment.seal is not None, "it is sealed"
        report = await self._threads().read(partial(check_segment_file, path, seal=segment.seal))
        wrong = next((one for one in report.findings if one.severity == "error"), None)
        if wrong is not None:
            raise Differs(f"{path}: {wrong.what}")

    def _staying(self) -> set[int]:
        return {node.node_id for node in self._catalog.nodes() if node.is_alive and not node.is_leaving}
