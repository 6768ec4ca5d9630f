"""A consistent cut as it lies in the bucket (docs/formats.md section 15). Written once; what it needs stays with it."""

from __future__ import annotations

import re
from typing import Final

from stratalog.formats.envelope import Structure, open_envelope, seal_envelope
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.identity import MAX_CLUSTER_ID_BYTES, MAX_TOPIC_BYTES
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic

MAX_CUT_NAME_BYTES: Final = 100
_MAX_SETTING_BYTES: Final = 0xFFFF
_MIN_TOPIC_BYTES: Final = 16 + 2 + 8 + 8 + 1 + 8 + 8
_MIN_SHARD_BYTES: Final = 16 + 4 + 8 + 8 + 4
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_cut_name(name: str) -> str:
    """Raises: InvalidRequest. Returns the name."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"snapshot name {name[:200]!r}: use 1 to {MAX_CUT_NAME_BYTES} of letters, digits, '.', '_' and '-', and "
            "begin with a letter or a digit"
        )
    return name


def encode_cut(cut: Cut) -> bytes:
    out = FieldWriter()
    out.text(cut.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    out.text(check_cut_name(cut.name), MAX_CUT_NAME_BYTES, "name")
    out.natural(cut.created_ms, "time")
    out.natural(len(cut.topics), "topic count")
    for topic in cut.topics:
        out.uuid(topic.topic_id)
        out.text(topic.name, MAX_TOPIC_BYTES, "topic's name")
        out.natural(topic.shard_count, "shard count")
        out.natural(topic.replication_factor, "replication factor")
        out.u8(topic.is_internal, "internal")
        out.natural(topic.created_ms, "topic's time")
        out.natural(len(topic.settings), "setting count")
        for key, value in topic.settings.items():
            out.text(key, _MAX_SETTING_BYTES, "setting")
            out.text(value, _MAX_SETTING_BYTES, "setting's value")
    out.natural(len(cut.shards), "shard count")
    for shard in cut.shards:
        out.uuid(shard.key.topic_id)
        out.natural32(shard.key.shard, "shard")
        out.natural(shard.log_start_offset, "log start")
        out.natural(shard.end_offset, "end")
        out.natural32(shard.epoch, "epoch")
    return seal_envelope(Structure.CUT, out.getvalue())


def decode_cut(data: Buffer, *, source: str) -> Cut:
    """`data` is the whole object. Raises: Corrupt."""
    fields = open_envelope(data, Structure.CUT, source=source, position=0)
    cluster_id = fields.text(MAX_CLUSTER_ID_BYTES, "cluster id")
    name = fields.text(MAX_CUT_NAME_BYTES, "name")
    created_ms = fields.natural("time")
    topics = tuple(_read_topic(fields) for _ in range(fields.count("topic count", _MIN_TOPIC_BYTES)))
    shards = tuple(_read_shard(fields) for _ in range(fields.count("shard count", _MIN_SHARD_BYTES)))
    fields.finish()
    return Cut(cluster_id, name, created_ms, topics, shards)


def _read_topic(fields: FieldReader) -> Topic:
    topic_id, name = fields.uuid("topic id"), fields.text(MAX_TOPIC_BYTES, "topic's name")
    shard_count, factor = fields.natural("shard count"), fields.natural("replication factor")
    is_internal, created_ms = fields.u8("internal") != 0, fields.natural("topic's time")
    settings = {
        fields.text(_MAX_SETTING_BYTES, "setting"): fields.text(_MAX_SETTING_BYTES, "setting's value")
        for _ in range(fields.count("setting count", 4))
    }
    return Topic(name, topic_id, shard_count, factor, settings, created_ms, is_internal)


def _read_shard(fields: FieldReader) -> CutShard:
    key = ShardKey(fields.uuid("topic id"), fields.natural32("shard"))
    shard = CutShard(key, fields.natural("log start"), fields.natural("end"), fields.natural32("epoch"))
    if shard.log_start_offset > shard.end_offset:
        fields.refuse(
            f"shard {key.shard} begins at {shard.log_start_offset}, behind its end {shard.end_offset}", back=20
        )
    return shard
