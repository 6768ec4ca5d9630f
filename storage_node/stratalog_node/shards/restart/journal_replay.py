"""Restores to segment files what a power cut took from them, from the journal, which had been flushed.

Runs once, before shards are recovered. Blocking; for a thread. Bytes below an acknowledgement never change, so writing
an entry again is harmless; `machines.restart.shard_restart` decides which entries are needed.
Durability: when `replay_into_segments` returns, every file it wrote to is flushed, and so are the directories that name
it: the journal may go.
"""

from __future__ import annotations

from stratalog.formats.disk.journal import JournalEntry
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, encode_segment_header
from stratalog.machines.restart.shard_restart import counts_in_journal
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_front, sync_names_of
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.journal_file import replay
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.restart.opening import is_header

log = logger(__name__)

_FILES_AT_ONCE = 64
"""Open until they are flushed: a descriptor that closes before would take the news of a lost page with it."""


class JournalReplay:
    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._files: dict[SegmentKey, SegmentFile] = {}
        self.made: list[SegmentKey] = []
        """Segments whose file was gone."""

    def run(self) -> int:
        """Returns how many entries there were. Raises: DiskFull, Unavailable; then start again once there is room."""
        try:
            count = replay(self._context.layout.journal, self._apply)
            self._flush()
        finally:
            for file in self._files.values():
                file.close()
        return count

    def _flush(self) -> None:
        for file in self._files.values():
            file.sync()
        sync_names_of([file.path for file in self._files.values()])
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _apply(self, entry: JournalEntry) -> None:
        key = entry.segment
        file = self._files.get(key)
        if file is None:
            segment = self._context.catalog.segment(key)
            topic = self._context.catalog.topic_by_id(key.topic_id)
            if segment is None or topic is None or not counts_in_journal(segment):
                return
            if len(self._files) >= _FILES_AT_ONCE:
                self._flush()
            file = self._files[key] = self._open(key, topic.name)
        file.put_back(SEGMENT_HEADER_BYTES + entry.position, entry.payload)

    def _open(self, key: SegmentKey, topic: str) -> SegmentFile:
        path = self._context.layout.segment(key)
        front = read_front(path, SEGMENT_HEADER_BYTES)
        file = SegmentFile(path, self._context.descriptors, 0)
        if front is not None:
            file.fd()
        if is_header(front):
            return file
        # The name, or the first page, was never flushed: only the journal was.
        log.warning("segment file made again from the journal", file=str(path))
        identity = SegmentIdentity(
            self._context.cluster_id,
            key.topic_id,
            topic,
            key.shard,
            key.epoch,
            key.base_offset,
            self._context.turn.now_ms,
        )
        header = encode_segment_header(identity)
        if front is None:
            file.create(header)
            self.made.append(key)
        else:
            file.put_back(0, header)
        return file
