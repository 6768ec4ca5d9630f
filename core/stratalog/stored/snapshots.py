"""Snapshots of the metadata as objects: lists, writes and reads them, a piece at a time.

Encoding and decoding run on a thread: a piece takes a tenth of a second, and a service has others to answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final
from uuid import UUID

from stratalog.formats.bucket.meta_snapshot import (
    Item,
    MetaSnapshotHead,
    MetaSnapshotId,
    SnapshotPiece,
    decode_head,
    decode_piece,
    encode_head,
    encode_pieces,
    piece_of,
)
from stratalog.formats.bucket.object_names import MetaSnapshotName, ObjectNames
from stratalog.machines.rebuild.meta_backups import FoundSnapshot
from stratalog.machines.table.dump import Captured, writes_of
from stratalog.machines.table.records import StoredRecord
from stratalog.model.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects.store import ObjectStore
from stratalog.stored import encoding

_PUT_S: Final = 300
"""For one piece: the stores have shorter deadlines of their own."""


async def list_snapshots(store: ObjectStore, names: ObjectNames) -> list[FoundSnapshot]:
    """Every attempt that left objects, oldest first. One listing."""
    keys: dict[tuple[int, int, UUID], list[str]] = defaultdict(list)
    headed = set()
    async for info in store.list(names.meta_prefix):
        name = names.parse(info.key)
        if isinstance(name, MetaSnapshotName):
            one = (name.number, name.version, name.nonce)
            if name.piece is None:
                headed.add(one)
                keys[one].insert(0, info.key)  # goes first when it is removed
            else:
                keys[one].append(info.key)
    return sorted(FoundSnapshot(*one, one in headed, tuple(those)) for one, those in keys.items())


def items_of(captured: Captured) -> Iterator[Item]:
    """Keys and values as a store keeps them."""
    for key, value in encoding.encode(writes_of(captured.records())):
        assert value is not None, "a snapshot deletes nothing"
        yield key, value


async def write_snapshot(
    store: ObjectStore, names: ObjectNames, snapshot_id: MetaSnapshotId, captured: Captured, now_ms: int
) -> MetaSnapshotHead:
    """Put all pieces, then the head. A put whose answer was lost is read back. Raises what the store raises."""
    name = MetaSnapshotName(snapshot_id.number, snapshot_id.version, snapshot_id.nonce)
    pieces: list[SnapshotPiece] = []
    record_count = 0
    encoded = encode_pieces(snapshot_id, items_of(captured))
    while (piece := await asyncio.to_thread(next, encoded, None)) is not None:
        body, count = piece
        await put_whole(store, names.build(replace(name, piece=len(pieces))), body)
        pieces.append(piece_of(body))
        record_count += count
    head = MetaSnapshotHead(snapshot_id, now_ms, record_count, tuple(pieces))
    await put_whole(store, names.build(name), encode_head(head))
    return head


async def put_whole(store: ObjectStore, key: str, body: bytes) -> None:
    """Put an object under a name that no other writer uses; a lost answer is resolved by reading back. Raises:
    Unavailable, what the store raises."""
    try:
        async with asyncio.timeout(_PUT_S):
            await store.put(key, [body])
    except TimeoutError as error:
        raise OutcomeUnknown(f"{key}: the object store did not answer in {_PUT_S} s") from error
    except (AlreadyExists, OutcomeUnknown) as error:  # the name is of this try alone: perhaps this very put
        try:
            found = await store.get(key)
        except NotFound:
            raise Unavailable(f"{key} was not put: {error}") from error
        if found != body:
            raise Corrupt("it is not what was put there", source=key, position=0) from error


async def read_snapshot(
    store: ObjectStore, names: ObjectNames, found: FoundSnapshot
) -> tuple[MetaSnapshotHead, list[StoredRecord]]:
    """All records of a snapshot, checked. Raises: Corrupt, NotFound for a piece that is gone, what the store raises."""
    head = await read_head(store, names, found)
    items = [items async for items in read_items(store, names, head)]
    records = await asyncio.to_thread(lambda: list(encoding.decode(chain.from_iterable(items), names.meta_prefix)))
    return head, records


async def read_head(store: ObjectStore, names: ObjectNames, found: FoundSnapshot) -> MetaSnapshotHead:
    key = names.build(MetaSnapshotName(found.number, found.version, found.nonce))
    head = decode_head(await store.get(key), source=key)
    if head.id != MetaSnapshotId(names.cluster_id, found.number, found.version, found.nonce):
        raise Corrupt(f"it says that it is {head.id}: it belongs under another name", source=key, position=0)
    return head


async def read_items(store: ObjectStore, names: ObjectNames, head: MetaSnapshotHead) -> AsyncIterator[list[Item]]:
    """The records of each piece."""
    total = 0
    for number, piece in enumerate(head.pieces):
        key = names.build(MetaSnapshotName(head.id.number, head.id.version, head.id.nonce, number))
        body = await store.get(key)
        if piece_of(body) != piece:
            raise Corrupt("it is not the piece that the snapshot's head names", source=key, position=0)
        items = await asyncio.to_thread(decode_piece, body, head.id, number, source=key)
        total += len(items)
        yield items
    if total != head.record_count:
        raise Corrupt(f"it has {total} records, its head names {head.record_count}", source=str(head.id), position=0)
