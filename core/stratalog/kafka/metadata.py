"""Metadata responses, versions 0-12, encoded without a library, in pieces that can be kept: brokers, each topic, the
frame around them.

Every library takes 7-10 ms for 1200 partitions, which stalls every connection of the loop; here a topic's bytes are
made once (about 1.3 us per partition) and joined from then on. Pure.

Versions: controller id, rack and is_internal from 1, cluster id from 2, throttle time from 3, offline replicas from 5,
leader epoch from 7, authorized operations from 8 (of the cluster only until 10), flexible from 9, topic ids from 10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.kafka.strings import compact_string, legacy_string
from stratalog.kafka.varint import encode_varint

MAX_VERSION = 12
NOT_ASKED = -(1 << 31)
"""Authorized operations if the client did not ask for them."""
OPERATIONS_SINCE = 8

_FLEXIBLE = 9
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionReplicas(NamedTuple):
    """Where a shard's active segment is; leader -1 while it has none, leader epoch -1 when unknown."""

    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


def shape_of_version(version: int) -> int:
    """Versions with the same shape encode a topic to the same bytes, so that a piece can serve several. 6 has the bytes
    of 5, and clients that ask by it know more errors."""
    return next(first for first in (10, 9, 8, 7, 6, 5, 1, 0) if version >= first)


def encode_topic(
    version: int,
    error_code: int,
    name: str | None,
    topic_id: UUID | None,
    is_internal: bool,
    partitions: Sequence[bytes],
) -> bytes:
    """One topic's entry, of those of its partitions (`encode_partition`). A null name is only legal in version 12, for
    an unknown topic id."""
    if version >= _FLEXIBLE:
        out = [_I16.pack(error_code), compact_string(name)]
        if version >= 10:
            out.append(topic_id.bytes if topic_id is not None else bytes(16))
        out += (b"\1" if is_internal else b"\0", encode_varint(len(partitions) + 1))
        out += partitions
        out.append(_I32.pack(NOT_ASKED) + b"\0")
        return b"".join(out)
    out = [_I16.pack(error_code), legacy_string(name or "")]
    if version >= 1:
        out.append(b"\1" if is_internal else b"\0")
    out.append(_I32.pack(len(partitions)))
    out += partitions
    if version >= 8:
        out.append(_I32.pack(NOT_ASKED))
    return b"".join(out)


def with_operations(version: int, topic: bytes, operations: int) -> bytes:
    """A topic's entry with the operations that the client may perform on it, a bit for each; from version 8 on."""
    end = b"\0" if version >= _FLEXIBLE else b""
    return topic[: -_I32.size - len(end)] + _I32.pack(operations) + end


def encode_metadata(
    version: int,
    brokers: Iterable[BrokerAddress],
    cluster_id: str,
    controller_id: int,
    topics: Sequence[bytes],
    cluster_operations: int = NOT_ASKED,
) -> bytes:
    """The response body around topics encoded for the same shape. `cluster_operations` are in versions 8 to 10."""
    brokers = tuple(brokers)
    if version >= _FLEXIBLE:
        out = [_I32.pack(0), encode_varint(len(brokers) + 1)]
        for node_id, host, port, rack in brokers:
            out += (_I32.pack(node_id), compact_string(host), _I32.pack(port), compact_string(rack), b"\0")
        out += (compact_string(cluster_id), _I32.pack(controller_id), encode_varint(len(topics) + 1))
        out += topics
        if version <= 10:
            out.append(_I32.pack(cluster_operations))
        out.append(b"\0")
        return b"".join(out)
    out = [_I32.pack(0)] if version >= 3 else []
    out.append(_I32.pack(len(brokers)))
    for node_id, host, port, rack in brokers:
        out += (_I32.pack(node_id), legacy_string(host), _I32.pack(port))
        if version >= 1:
            out.append(legacy_string(rack))
    if version >= 2:
        out.append(legacy_string(cluster_id))
    if version >= 1:
        out.append(_I32.pack(controller_id))
    out.append(_I32.pack(len(topics)))
    out += topics
    if version >= OPERATIONS_SINCE:
        out.append(_I32.pack(cluster_operations))
    return b"".join(out)


_ONE_REPLICA = struct.Struct(">hiiiBiBiBB")
_LEADER_V7 = struct.Struct(">hiii")
_LEADER_V0 = struct.Struct(">hii")


def encode_partition(version: int, one: PartitionReplicas) -> bytes:
    """One partition's entry, the same in all versions of a shape."""
    return _compact_partition(one) if version >= _FLEXIBLE else _legacy_partition(version, one)


def _compact_partition(one: PartitionReplicas) -> bytes:
    error, partition, leader, epoch, replicas, isr, offline = one
    if len(replicas) == 1 and len(isr) == 1 and not offline:
        return _ONE_REPLICA.pack(error, partition, leader, epoch, 2, replicas[0], 2, isr[0], 1, 0)
    return b"".join(
        (
            _LEADER_V7.pack(error, partition, leader, epoch),
            _compact_ids(replicas),
            _compact_ids(isr),
            _compact_ids(offline),
            b"\0",
        )
    )


def _legacy_partition(version: int, one: PartitionReplicas) -> bytes:
    error, partition, leader, epoch, replicas, isr, offline = one
    head = (
        _LEADER_V7.pack(error, partition, leader, epoch) if version >= 7 else _LEADER_V0.pack(error, partition, leader)
    )
    ids = _legacy_ids(replicas) + _legacy_ids(isr)
    return head + ids + _legacy_ids(offline) if version >= 5 else head + ids


def _compact_ids(ids: tuple[int, ...]) -> bytes:
    return encode_varint(len(ids) + 1) + struct.pack(f">{len(ids)}i", *ids)


def _legacy_ids(ids: tuple[int, ...]) -> bytes:
    return struct.pack(f">i{len(ids)}i", len(ids), *ids)
