"""Where things lie in a node's data directory. Names only; nothing is opened here.

node.json                                       node id, storage id, cluster id
clock.json                                      how old data is held to be (`stratalog_node.age_clock`)
segments/<topic id>/<shard>/<base 20>-<epoch>.seg    a segment: identity header, batches
segments/<topic id>/<shard>/<base 20>-<epoch>.idx    its index block, once sealed
segments/…/….unconfirmed, ….given-up            set aside for a human
segments/spare/<number 12>.spare                an empty file for a segment that will begin (disk/spare_files.py)
clean.json                                      the last stop was in order
life.json                                       which start began the present life (disk/life_record.py)
fences.json                                     fences that this node promised (disk/fences.py)
flush-failed                                    files whose flush failed
journal/<number 12>.journal                     the disk's shared write-ahead file
checkpoints/                                    RocksDB
checkpoints.damaged/                            one that was set aside for a human
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from stratalog.formats.bucket.object_names import parse_segment_file_name, segment_file_name
from stratalog.model.ids import SegmentKey, ShardKey

UNCONFIRMED_SUFFIX = ".unconfirmed"
GIVEN_UP_SUFFIX = ".given-up"
"""Suffix of files that were set aside for a human: they go with their topic."""
_LEFT_SUFFIXES = (UNCONFIRMED_SUFFIX, GIVEN_UP_SUFFIX, ".idx", ".tmp")
"""Suffixes of files beside the segments of a topic; the last is of an index block that was being written."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    root: Path

    @property
    def node_file(self) -> Path:
        return self.root / "node.json"

    @property
    def clock_file(self) -> Path:
        return self.root / "clock.json"

    @property
    def clean_file(self) -> Path:
        return self.root / "clean.json"

    @property
    def life_file(self) -> Path:
        return self.root / "life.json"

    @property
    def fences(self) -> Path:
        return self.root / "fences.json"

    @property
    def lost_flushes(self) -> Path:
        return self.root / "flush-failed"

    @property
    def probe(self) -> Path:
        return self.root / "probe"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def segments(self) -> Path:
        return self.root / "segments"

    @property
    def spares(self) -> Path:
        """Beside the segments, whatever file system they are on: a rename gives each its name."""
        return self.segments / "spare"

    def shard(self, key: ShardKey) -> Path:
        return self.root.joinpath("segments", str(key.topic_id), str(key.shard))

    def segment(self, key: SegmentKey) -> Path:
        # One join: a start with 10,000 shards makes 10,000 of them.
        name = segment_file_name(key.base_offset, key.epoch)
        return self.root.joinpath("segments", str(key.topic_id), str(key.shard), name)

    def key_of(self, path: Path) -> SegmentKey | None:
        """Which segment's file that is; None: no segment's."""
        parsed = parse_segment_file_name(path.name)
        try:
            topic_id, shard = UUID(path.parent.parent.name), int(path.parent.name)
        except ValueError:
            return None
        return None if parsed is None else SegmentKey(topic_id, shard, parsed[1], parsed[0])

    def index(self, key: SegmentKey) -> Path:
        return self.segment(key).with_suffix(".idx")

    def list_shards(self) -> dict[ShardKey, list[SegmentKey]]:
        """Every segment file there is, by shard, oldest epoch first. Foreign names are left alone."""
        found: dict[ShardKey, list[SegmentKey]] = {}
        if not self.segments.is_dir():
            return found
        for topic_path in self.segments.iterdir():
            try:
                topic_id = UUID(topic_path.name)
            except ValueError:
                continue
            for shard_path in topic_path.iterdir():
                if shard_path.name.isascii() and shard_path.name.isdigit():
                    key = ShardKey(topic_id, int(shard_path.name))
                    keys = self._segments_in(shard_path, key)
                    if keys:
                        found[key] = keys
        return found

    def list_shard(self, key: ShardKey) -> list[SegmentKey]:
        """The segment files of one shard, oldest epoch first."""
        path = self.shard(key)
        return self._segments_in(path, key) if path.is_dir() else []

    def remove_leftovers(self, key: ShardKey) -> None:
        """Blocking. Of a topic that is gone: once its segments are, what was set aside goes, too, what a crash left of
        index blocks, and the directories. Cost: entries up to the first segment file."""
        path = self.shard(key)
        with suppress(OSError):
            entries = []
            for entry in path.iterdir():
                if entry.suffix not in _LEFT_SUFFIXES:
                    return
                entries.append(entry)
            for entry in entries:
                entry.unlink(missing_ok=True)
            path.rmdir()
            path.parent.rmdir()

    @staticmethod
    def _segments_in(path: Path, key: ShardKey) -> list[SegmentKey]:
        keys = []
        for entry in path.iterdir():
            parsed = parse_segment_file_name(entry.name)
            if parsed is not None:
                base_offset, epoch = parsed
                keys.append(SegmentKey(key.topic_id, key.shard, epoch, base_offset))
        return sorted(keys, key=lambda k: k.epoch)
