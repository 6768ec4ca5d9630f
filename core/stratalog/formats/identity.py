"""How a segment's identity and key look inside other structures (docs/formats.md, "Shared pieces")."""

from __future__ import annotations

from stratalog.formats.fields import FieldReader, FieldWriter
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity

MAX_TOPIC_BYTES = 249
MAX_CLUSTER_ID_BYTES = 64


def write_identity(out: FieldWriter, identity: SegmentIdentity) -> None:
    out.text(identity.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    out.uuid(identity.topic_id)
    out.text(identity.topic, MAX_TOPIC_BYTES, "topic name")
    out.natural32(identity.shard, "shard")
    out.natural32(identity.epoch, "epoch")
    out.natural(identity.base_offset, "base offset")
    out.i64(identity.created_ms, "creation time")


def read_identity(fields: FieldReader) -> SegmentIdentity:
    cluster_id = fields.text(MAX_CLUSTER_ID_BYTES, "cluster id")
    topic_id = fields.uuid("topic id")
    topic = fields.text(MAX_TOPIC_BYTES, "topic name")
    shard = fields.natural32("shard")
    epoch = fields.natural32("epoch")
    base_offset = fields.natural("base offset")
    created_ms = fields.i64("creation time")
    return SegmentIdentity(cluster_id, topic_id, topic, shard, epoch, base_offset, created_ms)


def write_key(out: FieldWriter, key: SegmentKey) -> None:
    out.uuid(key.topic_id)
    out.natural32(key.shard, "shard")
    out.natural32(key.epoch, "epoch")
    out.natural(key.base_offset, "base offset")


def read_key(fields: FieldReader) -> SegmentKey:
    topic_id = fields.uuid("topic id")
    shard = fields.natural32("shard")
    epoch = fields.natural32("epoch")
    return SegmentKey(topic_id, shard, epoch, fields.natural("base offset"))
