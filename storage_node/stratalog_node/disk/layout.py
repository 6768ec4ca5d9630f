"""Where things lie in a node's data directories. Names only; nothing is opened here.

Everything is in the first directory, except sealed copies that were moved to a further one: `moved` names these, and
`segment` and `index` are the only functions that say where a segment's files are. In the first directory:

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
directories.json                                the further directories of this node (disk/further_directories.py)

In a further directory: directory.json (whose it is), lock, and segments/ as above.
In each: moving/ (the copies that are being made there).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from stratalog.formats.bucket.object_names import parse_segment_file_name, segment_file_name
from stratalog.model.ids import SegmentKey, ShardKey

UNCONFIRMED_SUFFIX = ".unconfirmed"
GIVEN_UP_SUFFIX = ".given-up"
"""Suffix of files that were set aside for a human: they go with their topic."""
_LEFT_SUFFIXES = (UNCONFIRMED_SUFFIX, GIVEN_UP_SUFFIX, ".idx", ".tmp")
"""Suffixes of files beside the segments of a topic; the last is of an index block that was being written."""


@dataclass(slots=True, eq=False)
class FurtherDirectory:
    """A data directory besides the first: it has sealed copies alone (`further_directories.py` opens it)."""

    root: Path
    storage_class: str
    directory_id: str = ""
    trouble: str | None = None
    """Why it cannot be used, and what to do; None while it can."""
    is_absent: bool = False
    """It could not be opened when the node started: which copies it has is not known."""
    is_draining: bool = False
    """Its copies move to other directories, and none to it."""
    lock: int = -1
    """The descriptor that keeps other processes out of it."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    root: Path
    """The first directory."""
    moved: dict[SegmentKey, Path] = field(default_factory=dict, compare=False, repr=False)
    """Sealed copies outside the first directory, and the root of the one that has each. Any thread may read it; it
    changes on the event loop, and where a removal has ended."""
    further: list[FurtherDirectory] = field(default_factory=list, compare=False, repr=False)
    """The further directories, in the order of the settings; filled in once, when the node starts."""

    @property
    def roots(self) -> list[Path]:
        """Of the first directory, and of the further ones that can be used now."""
        return [self.root, *(one.root for one in self.further if one.trouble is None)]

    @property
    def absent(self) -> list[FurtherDirectory]:
        """Directories that could not be opened at the start. While there is one, a sealed copy that is not found may
        be there: it is away, and not lost."""
        return [one for one in self.further if one.is_absent]

    def further_of(self, path: Path) -> FurtherDirectory | None:
        """The further directory in which that file lies; None: it lies in the first one."""
        return next((one for one in self.further if one.root in path.parents), None) if self.further else None

    @property
    def directories_file(self) -> Path:
        return self.root / "directories.json"

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
        """Where its file is, or is to be created. No other function says so."""
        return segment_path(self.moved.get(key, self.root), key)

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
        for path, key in shard_paths(self.root):
            if keys := segments_in(path, key):
                found[key] = keys
        for moved in self.moved:
            found[moved.shard_key] = _with(found.get(moved.shard_key, []), moved)
        return found

    def list_shard(self, key: ShardKey) -> list[SegmentKey]:
        """The segment files of one shard, oldest epoch first."""
        path = self.shard(key)
        found = segments_in(path, key) if path.is_dir() else []
        for moved in list(self.moved):
            if moved.shard_key == key:
                found = _with(found, moved)
        return found

    @staticmethod
    def remove_leftovers(root: Path, key: ShardKey) -> None:
        """Blocking. Of a topic that is gone, in the directory with that root: once its segments are, what was set aside
        goes, too, what a crash left of index blocks, and the directories. Cost: entries up to the first segment file.
        """
        path = root.joinpath("segments", str(key.topic_id), str(key.shard))
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


def segment_path(root: Path, key: SegmentKey) -> Path:
    """Where the segment's file lies if it is in the directory with that root."""
    # One join: a start with 10,000 shards makes 10,000 of them.
    name = segment_file_name(key.base_offset, key.epoch)
    return root.joinpath("segments", str(key.topic_id), str(key.shard), name)


def moving_path(root: Path, key: SegmentKey) -> Path:
    """Where a copy of the segment's file is made in the directory with that root. A start removes what lies there."""
    name = segment_file_name(key.base_offset, key.epoch)
    return root.joinpath("moving", f"{key.topic_id}-{key.shard}-{name}")


def shard_paths(root: Path) -> Iterator[tuple[Path, ShardKey]]:
    """The folders of shards in the directory with that root. Blocking. Raises: OSError."""
    segments = root / "segments"
    if not segments.is_dir():
        return
    for topic_path in segments.iterdir():
        try:
            topic_id = UUID(topic_path.name)
        except ValueError:
            continue
        for shard_path in topic_path.iterdir():
            if shard_path.name.isascii() and shard_path.name.isdigit():
                yield shard_path, ShardKey(topic_id, int(shard_path.name))


def segments_in(path: Path, key: ShardKey) -> list[SegmentKey]:
    """The segment files in a shard's folder, oldest epoch first. Blocking. Raises: OSError."""
    keys = []
    for entry in path.iterdir():
        parsed = parse_segment_file_name(entry.name)
        if parsed is not None:
            base_offset, epoch = parsed
            keys.append(SegmentKey(key.topic_id, key.shard, epoch, base_offset))
    return sorted(keys, key=lambda k: k.epoch)


def _with(keys: list[SegmentKey], key: SegmentKey) -> list[SegmentKey]:
    return keys if key in keys else sorted((*keys, key), key=lambda k: k.epoch)
