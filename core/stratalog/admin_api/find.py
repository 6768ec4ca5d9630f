"""The records of a key: what a node finds of them in the shards that it leads. An answer is bounded; `cursor` asks for
the next one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, Field

MOST_RECORDS: Final = 1_000
"""Of one answer."""
MOST_VALUE_BYTES: Final = 256 << 10
"""Most bytes of key, value and headers that are returned of a record; for a larger one only its place is returned."""


class FoundHeader(BaseModel):
    name: str
    value: str | None = None
    value_base64: str | None = None


class FoundRecord(BaseModel):
    """`value_base64` where the value is no UTF-8; neither for a record without a value."""

    shard: int
    offset: int
    timestamp_ms: int | None = Field(description="Null where the record has none.")
    size_bytes: int = Field(description="Of its value and headers.")
    value: str | None = None
    value_base64: str | None = None
    headers: list[FoundHeader] = []
    is_left_out: bool = Field(default=False, description="Value and headers are too large for an answer: consume it.")

    @property
    def told_bytes(self) -> int:
        """What the answer has of it."""
        return 0 if self.is_left_out else self.size_bytes


class NotSearched(BaseModel):
    shard: int
    from_offset: int
    to_offset: int
    why: str
    is_unindexed: bool = Field(default=False, description="There is no key index: `scan=true` reads the data itself.")


class LedElsewhere(BaseModel):
    """Shards of the topic that this node does not lead, and so did not search."""

    node_id: int | None = Field(description="The node that leads them; null if none does.")
    shards: int


class FindAnswer(BaseModel):
    topic: str
    node_id: int
    records: list[FoundRecord]
    cursor: str | None = Field(description="Ask again with it for what follows; null: all was searched.")
    not_searched: list[NotSearched] = []
    led_elsewhere: list[LedElsewhere] = Field(default=[], description="In the first answer, without a cursor.")
    topic_shards: int = Field(description="How many shards the topic has.")
    searched: list[tuple[int, int]] = Field(
        default=[],
        description="Shards [from, to) that this answer came to the end of. Of several nodes' answers, they "
        "tell whether a shard that changed its leader meanwhile was not searched at all.",
    )
    segments: int = Field(description="Searched by their key index.")
    key_index_reads: int
    batch_reads: int
    bytes_read: int = Field(description="From the object store, by the key index.")
    offsets_read: int = Field(description="Of what was read whole: hot records, and with `scan` all without an index.")


def text_and_base64(data: bytes | None) -> tuple[str | None, str | None]:
    """As the one or the other."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def bytes_of(text: str | None, encoded: str | None) -> bytes | None:
    if encoded is not None:
        return base64.b64decode(encoded)
    return None if text is None else text.encode()


def found_record(
    shard: int, offset: int, timestamp_ms: int, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> FoundRecord:
    size = len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)
    record = FoundRecord(
        shard=shard, offset=offset, timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None, size_bytes=size
    )
    if size > MOST_VALUE_BYTES:
        return record.model_copy(update={"is_left_out": True})
    record.value, record.value_base64 = text_and_base64(value)
    for name, data in headers:
        text, encoded = text_and_base64(data)
        record.headers.append(FoundHeader(name=name, value=text, value_base64=encoded))
    return record
