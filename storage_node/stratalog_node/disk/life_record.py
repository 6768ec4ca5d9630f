"""`life.json`: proves that a directory is the one in which the last life of the node ran, and neither a copy nor an
older state of it.

Each start of a process has a random name. The directory keeps the name of the start that began its last life, and those
of later starts that may have begun one: the meta service knows which did, and accepts the directory as the continuation
of that life if the directory names it. A start writes its name before it registers, and drops the earlier ones once the
service has answered, before it serves any client; so a life that may have confirmed anything is named in its directory.

A copied file is another file: the file records its own number in the file system, which is wrong in a copy, so a copy
names no start. A whole file system that was rolled back within one life is not detected.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from stratalog.model.ids import ShardKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_file, write_durably_of

log = logger(__name__)

_MOST_STARTS: Final = 32
"""Starts that are kept: the first, which was answered, and the last ones. Only a start that was performed and not
answered adds one that counts."""
_GET_GENERATION: Final = 0x80087601
"""FS_IOC_GETVERSION: what tells two files apart that had one inode number, one after the other."""


@dataclass(frozen=True, slots=True)
class PastLife:
    """What the directory shows of the life before."""

    starts: tuple[str, ...] = ()
    """Names of starts; one of them began that life. Empty: the directory cannot prove which life it continues."""
    boot_id: str = ""
    """The machine's boot since which nothing was lost but by the disk: in it the files were examined that boots before
    had left, those of the shards `unexamined` excepted. Empty: no start in the boot has come so far."""
    unexamined: frozenset[ShardKey] = frozenset()
    """Shards that could not be opened in that boot."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What this directory is, as far as it and the meta service know."""

    is_continued: bool = True
    """The one in which the node's last life ran (`Registration.is_continued`). In another one a file may be shorter
    than it was when its segment was sealed."""
    is_memory_kept: bool = False
    """And the machine has run since its files were examined: all that was written since is there, unless the disk
    damaged it."""
    is_examined: bool = True
    """No file is left whose tail a power cut may have taken and that no start has examined since, those of the shards
    `unexamined` excepted."""
    unexamined: frozenset[ShardKey] = frozenset()
    """Shards of which nothing is known: neither of the two statements above is about them."""


NOT_KNOWN: Final = Origin()
"""The origin of a directory that the meta service does not know."""


def note_start(path: Path, start_id: str, boot_id: str) -> PastLife:
    """Blocking, before the node registers. Durability: the start is named when this returns. Raises: DiskFull,
    Unavailable."""
    past = _read(path)
    kept = (*past.starts[:1], *past.starts[1:][-(_MOST_STARTS - 2) :])
    is_same_boot = past.boot_id == boot_id
    _write(path, (*kept, start_id), boot_id if is_same_boot else "", past.unexamined if is_same_boot else ())
    return past


def note_life(path: Path, start_id: str, boot_id: str, unexamined: Iterable[ShardKey] = ()) -> None:
    """Blocking, once the meta service has answered that this start began a life, and before anything is done in it;
    `boot_id` and `unexamined` as in `PastLife`. And again once this life has examined more files.
    Durability: it is on the disk when this returns. Raises: DiskFull, Unavailable."""
    _write(path, (start_id,), boot_id, unexamined)


def seat_of(descriptor: int, boot_id: str) -> str:
    """Names the directory whose locked file `descriptor` is: no two processes of one boot hold the lock at once. Empty:
    the boot is not known."""
    status = os.fstat(descriptor)
    return f"{boot_id}/{status.st_dev}/{status.st_ino}" if boot_id else ""


def _read(path: Path) -> PastLife:
    data = read_file(path)
    if data is None:
        return PastLife()
    try:
        fields = json.loads(data)
        starts = tuple(str(one) for one in fields["starts"])
        topics = fields.get("unexamined", {}).items()
        unexamined = frozenset(ShardKey(UUID(topic), int(shard)) for topic, shards in topics for shard in shards)
        if _is_itself(path, fields["file"]):
            return PastLife(starts, str(fields["boot_id"]), unexamined)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.error("the record of a directory's past lives cannot be read", file=str(path), error=str(error))
    else:
        log.error("this directory is a copy of another one, or was put back from one", file=str(path))
    return PastLife()


def _is_itself(path: Path, claimed: Any) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _number_of(descriptor)
    finally:
        os.close(descriptor)
    is_same_inode = claimed["inode"] == found["inode"]
    is_reused = (
        None not in (claimed["generation"], found["generation"]) and claimed["generation"] != found["generation"]
    )
    return bool(is_same_inode and not is_reused)


def _number_of(descriptor: int) -> dict[str, int | None]:
    try:
        answer = fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8))
        generation: int | None = int.from_bytes(answer[:4], sys.byteorder)
    except OSError:
        generation = None  # this file system has none
    return {"inode": os.fstat(descriptor).st_ino, "generation": generation}


def _write(path: Path, starts: Iterable[str], boot_id: str, unexamined: Iterable[ShardKey]) -> None:
    topics: dict[str, list[int]] = {}
    for key in sorted(unexamined):
        topics.setdefault(str(key.topic_id), []).append(key.shard)

    def content(descriptor: int) -> list[bytes]:
        fields = {"starts": list(starts), "boot_id": boot_id, "unexamined": topics, "file": _number_of(descriptor)}
        return [json.dumps(fields).encode() + b"\n"]

    write_durably_of(path, content)
