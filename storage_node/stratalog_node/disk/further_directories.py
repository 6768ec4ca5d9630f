"""Data directories besides the first: whose each one is, and what it has.

Each has an identity file `directory.json` (node id, storage id of the first directory, cluster id, and an id of its
own), and the first directory lists the ids that it knows in `directories.json`. So an empty mount point, a directory of
another node and a copy of a directory are recognized:

* an identity of this node: the directory is used, wherever it is mounted now; it is added to the list if it is new;
* no identity, and the list has none for this path: a new directory. It gets an identity, then its place in the list;
* no identity, or none that can be read, and the list has one for this path: the directory is absent. Its copies are
  away, not lost, and nothing is written there;
* the identity of another node, cluster or storage id, or one that two paths show: the node does not start.

Threads: blocking, before the node serves. A directory that does not answer within `PATIENCE_S` is absent.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stratalog.formats.bucket.object_names import parse_index_file_name
from stratalog.model.data_directories import DirectorySpec
from stratalog.model.errors import Corrupt, InvalidRequest, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import make_directories, read_file, read_from_disk, write_durably
from stratalog_node.disk.layout import FurtherDirectory, NodeLayout, segment_path, segments_in, shard_paths

log = logger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 20.0
IDENTITY_FILE: Final = "directory.json"


class NodeMark(NamedTuple):
    """The node that a directory belongs to."""

    node_id: int
    storage_id: str
    cluster_id: str


class OpenedDirectory(NamedTuple):
    directory: FurtherDirectory
    sizes: Mapping[SegmentKey, int]
    """The segment files in it, with their sizes in bytes."""


def open_directories(
    layout: NodeLayout, specs: Iterable[DirectorySpec], mark: NodeMark, *, patience_s: float = PATIENCE_S
) -> list[OpenedDirectory]:
    """Open each, and fill in `layout.further`. Blocking.

    Requires: the caller holds the lock of the first directory, so that no other process of this node runs.
    Raises: InvalidRequest when one belongs to another node or was copied, Corrupt when the list of the first directory
    cannot be understood, Unavailable and DiskFull when it cannot be read or written.
    """
    known = _read_known(layout.directories_file)
    if known:
        clear_moving(layout.root)
    opened: list[OpenedDirectory] = []
    by_id: dict[str, Path] = {}
    for spec in specs:
        root = Path(spec.path)
        if root == layout.root.parent or root in layout.root.parents or layout.root in root.parents:
            raise InvalidRequest(f"data.dirs: {root} and the first data directory {layout.root} lie in each other")
        expected = next((one for one, path in known.items() if path == spec.path), None)
        one = _open(root, spec.storage_class, expected, mark, patience_s)
        directory = one.directory
        if directory.directory_id in by_id:
            raise InvalidRequest(
                f"data.dirs: {root} is a copy of {by_id[directory.directory_id]}: name only the right one of them"
            )
        if directory.directory_id:
            by_id[directory.directory_id] = root
        opened.append(one)
    layout.further[:] = [one.directory for one in opened]
    now = _known_now(known, layout.further)
    if now != known:
        content = {"directories": [{"directory_id": one_id, "path": path} for one_id, path in sorted(now.items())]}
        write_durably(layout.directories_file, [json.dumps(content, indent=2).encode() + b"\n"])
    return opened


def _known_now(known: Mapping[str, str], further: list[FurtherDirectory]) -> dict[str, str]:
    """What to remember. Adds to `further` what is known to have been at a path at which another directory is now."""
    by_path = {str(one.root): one for one in further}
    now = {one.directory_id: str(one.root) for one in further if one.directory_id}
    for one_id, path in known.items():
        at_path = by_path.get(path)
        if one_id in now:  # it is here, perhaps at another path: what its former path lacks is not missing
            if at_path is not None and at_path.is_absent:
                at_path.is_absent = any(other != one_id and known[other] == path for other in known)
                at_path.trouble = f"its disk is mounted at {now[one_id]} now: remove {path} from data.dirs"
            continue
        if at_path is None:
            # Taking it out of the settings is how a person says to do without it.
            log.warning("a data directory is not in data.dirs any more: its copies count as missing", directory=path)
            continue
        now[one_id] = path
        if not at_path.is_absent:
            trouble = f"another directory is mounted there: mount the disk {one_id}, then start the node again"
            further.append(FurtherDirectory(at_path.root, at_path.storage_class, "", trouble, is_absent=True))
    return now


def _read_known(path: Path) -> dict[str, str]:
    """Directory id -> the path at which it was last."""
    data = read_file(path)
    if data is None:
        return {}
    try:
        return {str(one["directory_id"]): str(one["path"]) for one in json.loads(data)["directories"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"not a list of data directories: {error}; restore it from a backup", source=str(path), position=0
        ) from error


def _open(root: Path, storage_class: str, expected: str | None, mark: NodeMark, patience_s: float) -> OpenedDirectory:
    try:
        directory_id, lock, sizes = _within(patience_s, lambda: _identify_and_scan(root, expected, mark))
    except (Unavailable, Corrupt, OSError) as error:
        why = f"{error}: mount the disk, or repair it, then start the node again; to do without it, remove it from "
        trouble = f"{why}data.dirs"
        log.error("a data directory is absent: its copies are away", directory=str(root), why=trouble)
        return OpenedDirectory(FurtherDirectory(root, storage_class, "", trouble, is_absent=True), {})
    return OpenedDirectory(FurtherDirectory(root, storage_class, directory_id, lock=lock), sizes)


def _identify_and_scan(root: Path, expected: str | None, mark: NodeMark) -> tuple[str, int, dict[SegmentKey, int]]:
    directory_id = _identify(root, expected, mark)
    lock = _lock(root)
    try:
        clear_moving(root)
        make_directories(root / "segments", root / "moving")
        return directory_id, lock, scan_directory(root)
    except BaseException:
        os.close(lock)
        raise


def _lock(root: Path) -> int:
    """A copy of the first directory elsewhere must not use this one. The descriptor keeps it."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise InvalidRequest(f"data.dirs: {root} is in use by another process: stop it first") from None
    return fd


def close_directories(layout: NodeLayout) -> None:
    """Give the locks back, when nothing uses the directories any more."""
    for one in layout.further:
        if one.lock >= 0:
            os.close(one.lock)
            one.lock = -1


def _identify(root: Path, expected: str | None, mark: NodeMark) -> str:
    path = root / IDENTITY_FILE
    data = read_file(path)
    if data is None:
        if expected is not None:
            raise Unavailable(f"{path} is not there, and this node has data in the directory {expected}")
        if not root.is_dir():
            raise InvalidRequest(f"data.dirs: {root} is not a directory: make it, or mount its disk")
        if any((root / name).exists() for name in ("segments", "node", "meta", "node.json")):
            raise InvalidRequest(f"data.dirs: {root} has data and no {IDENTITY_FILE}: name an empty directory")
        directory_id = str(uuid.uuid4())
        content = {**mark._asdict(), "directory_id": directory_id}
        write_durably(path, [json.dumps(content, indent=2).encode() + b"\n"])
        log.info("a new data directory", directory=str(root), directory_id=directory_id)
        return directory_id
    try:
        fields = json.loads(data)
        found = NodeMark(int(fields["node_id"]), str(fields["storage_id"]), str(fields["cluster_id"]))
        directory_id = str(fields["directory_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"not the identity of a data directory: {error}", source=str(path), position=0) from error
    if found != mark:
        raise InvalidRequest(
            f"data.dirs: {root} belongs to node {found.node_id} of cluster {found.cluster_id} with storage id "
            f"{found.storage_id}, and this is node {mark.node_id} of cluster {mark.cluster_id} with storage id "
            f"{mark.storage_id}: name this node's own directory, or an empty one"
        )
    if expected is not None and directory_id != expected:
        log.warning("another directory of this node is mounted there now", directory=str(root), was=expected)
    return directory_id


def attach_for_reading(layout: NodeLayout) -> dict[str, str]:
    """For who only reads a node's directory, while the node may run or may be retired: find the files in its further
    directories. Changes nothing on a disk. Blocking.

    Returns: why a directory cannot be read, by its path. Raises: Corrupt, Unavailable: the list itself cannot be.
    """
    troubles: dict[str, str] = {}
    for directory_id, path in _read_known(layout.directories_file).items():
        root = Path(path)
        try:
            check_directory(FurtherDirectory(root, "", directory_id))
            for folder, shard in shard_paths(root):
                for key in segments_in(folder, shard):
                    if not segment_path(layout.root, key).exists():
                        layout.moved.setdefault(key, root)
        except (Unavailable, OSError) as error:
            troubles[path] = str(error)
    return troubles


def scan_directory(root: Path) -> dict[SegmentKey, int]:
    """The segment files there, with their sizes. Removes index blocks without a segment, which a move that was cut
    short leaves. Blocking. Raises: OSError."""
    found: dict[SegmentKey, int] = {}
    for path, shard in shard_paths(root):
        for key in segments_in(path, shard):
            found[key] = segment_path(root, key).stat().st_size
        for entry in list(path.iterdir()):
            if parse_index_file_name(entry.name) is not None and not entry.with_suffix(".seg").exists():
                entry.unlink(missing_ok=True)
    return found


def clear_moving(root: Path) -> None:
    """Remove the copies that were being made in the directory with that root. Blocking. Raises: OSError."""
    folder = root / "moving"
    if folder.is_dir():
        for entry in list(folder.iterdir()):
            entry.unlink(missing_ok=True)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """On a thread of its own, which a disk that hangs keeps. Raises: Unavailable when it is not done in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="open-directory", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise Unavailable(f"the disk did not answer within {seconds:.0f} s")
    return results[0]


def check_directory(directory: FurtherDirectory) -> None:
    """Whether the disk still gives what was opened. Blocking. Raises: Unavailable."""
    path = directory.root / IDENTITY_FILE
    data = read_from_disk(path)
    with suppress(ValueError, KeyError, TypeError):
        if str(json.loads(data)["directory_id"]) == directory.directory_id:
            return
    raise Unavailable(f"{path} is another directory's now: mount the disk {directory.directory_id} there")
