"""Who wrote what, as a node knows it: the tables of producers at the ends of segments, and the report on its copy.

Tables lie on the disks beside their segments. One that a node lacks it has from another that lives, or from the object
store, without the delays and refusals of a network: what is taken is what the seal speaks of, and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial

from stratalog.machines.copies.leaving import are_producers_lost
from stratalog.machines.leading import sealed_producers
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.sealed_producers import Producers, sealed_table
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS, ProducerRule, ProducerTally
from stratalog.model.segment import RemoteState, SealRecord, Segment
from stratalog_sim.environment.disk import Batch, digest_of, header_of
from stratalog_sim.environment.store import StoredManifest
from stratalog_sim.node.shell import NodeShell

RULE = ProducerRule(1_000, 1_000_000_000)


def producers_before(node: NodeShell, segment: Segment) -> Producers | None:
    """At the segment's base: the table of the segment before it, else what this node's own copies say. None: not known
    here yet."""

    def in_copy(before: Segment) -> Producers | None:
        file = node.disk.files.get(before.key)
        whole = file.whole(before.key) if file is not None else []
        end_offset = whole[-1].end_offset if whole else before.base_offset
        return found_in(node, before.key, end_offset) if sealed_producers.is_whole(before, end_offset) else None

    segments = node.view.segments(segment.key.shard_key)
    at_seal = partial(table_of, node)
    return sealed_producers.producers_before(segments, segment.epoch, at_seal, in_copy, RULE)


def table_of(node: NodeShell, segment: Segment) -> Producers | None:
    """The table at the end of a sealed segment. None: no node that can be asked has it."""
    assert segment.seal is not None
    if not segment.seal.producers.count:
        return ()
    for table in _tables(node, segment):
        if _digest_of(table) == segment.seal.producers.digest:
            return table
    found = () if segment.end_offset == segment.base_offset else _stored(node, segment)
    made = None if found is None else _behind_it(node, segment, found)
    is_nowhere = segment.end_offset == segment.base_offset and not segment.local_nodes
    if made is not None and (is_nowhere or _digest_of(made) == segment.seal.producers.digest):
        return made
    behind = [one for one in node.view.segments(segment.key.shard_key) if one.epoch > segment.epoch]
    is_read = node.view.reads_at
    is_lost = are_producers_lost(segment, behind, node.view.nodes.get, lambda one: is_read(one) is not None)
    return () if is_lost else None


def _behind_it(node: NodeShell, segment: Segment, found: Producers) -> Producers | None:
    """From the table of the one before it."""
    listed = node.view.segments(segment.key.shard_key)
    before = next((one for one in listed if one.epoch == segment.epoch - 1), None)
    known = () if before is None else None if before.seal is None else table_of(node, before)
    if known is None:
        return None
    return sealed_table(known, found, base_offset=segment.base_offset, opened_ms=segment.opened_ms, rule=RULE)


def _stored(node: NodeShell, segment: Segment) -> Producers | None:
    """What its batches in the object store say. None: not all of them are there."""
    remote, objects = segment.remote, node.judge.store.objects
    assert segment.seal is not None
    if not node.has_store or remote.state is RemoteState.NONE or remote.commit_offset < segment.seal.end_offset:
        return None
    batches: list[Batch] = []
    for part in remote.parts:
        body = objects.get(part.object_key)
        stored = body if isinstance(body, tuple) else ()
        begun = (one for one in stored if one.key == segment.key and one.batches[0].base_offset == part.base_offset)
        batches += [batch for one in begun for batch in one.batches]
    if digest_of(batches) != segment.seal.digest:
        return None
    table = ProducerTable()
    for batch in batches:
        table.replay(header_of(batch), node.now_ms)
    return table.snapshot()


def _tables(node: NodeShell, segment: Segment) -> Iterator[Producers]:
    yield node.disk.tables.get(segment.key, ())
    for other in segment.local_nodes:
        if node.view.reads_at(other) is not None:
            yield node.judge.disks[other].tables.get(segment.key, ())
    if segment.remote.state is RemoteState.COMPLETE:
        manifest = node.judge.store.objects.get(segment.remote.manifest_key or "")
        if isinstance(manifest, StoredManifest):
            yield manifest.table


def found_in(node: NodeShell, key: SegmentKey, end_offset: int) -> Producers:
    """What a file's batches say of producers."""
    table, file = ProducerTable(), node.disk.files.get(key)
    for batch in file.whole(key) if file is not None else []:
        if batch.end_offset <= end_offset:
            table.replay(header_of(batch), node.now_ms)
    return table.snapshot()


def _continued(node: NodeShell, key: SegmentKey, before: Producers, end_offset: int) -> Producers:
    """The table at the end of a segment. If a view that lags lacks the time of opening, no producer is forgotten."""
    listed, found = node.view.segment(key), found_in(node, key, end_offset)
    opened_ms = listed.opened_ms if listed is not None else 0
    return sealed_table(before, found, base_offset=key.base_offset, opened_ms=opened_ms, rule=RULE)


def tally_at_end(node: NodeShell, key: SegmentKey, before: Producers, end_offset: int) -> ProducerTally:
    """What a node says of the table at a segment's end. From then on it lies on its disk."""
    made = _continued(node, key, before, end_offset)
    if key not in node.disk.led_to_the_end:  # an index block is there, and the seal may speak of its table
        node.disk.tables[key] = made
    return ProducerTally(len(made), _digest_of(made), *RULE) if made else NO_PRODUCERS


def _digest_of(table: Producers) -> bytes:
    return zlib.crc32(repr(table).encode()).to_bytes(4, "big")


def proof_of(node: NodeShell, key: SegmentKey, end_offset: int, size_bytes: int, digest: bytes) -> SealRecord | None:
    """A report on a copy. None: what producers wrote before it is not known yet."""
    segment = node.view.segment(key)
    if segment is None:
        return None
    if segment.seal is not None:
        producers = segment.seal.producers
        node.disk.tables[key] = table_of(node, segment) or ()
    else:
        before = producers_before(node, segment)
        if before is None:
            return None
        producers = tally_at_end(node, key, before, end_offset)
    times = node.now_ms if size_bytes else -1
    return SealRecord(
        key.epoch,
        key.base_offset,
        end_offset,
        times,
        times,
        size_bytes,
        digest,
        producers,
        (node.node_id,),
        node.now_ms,
    )
