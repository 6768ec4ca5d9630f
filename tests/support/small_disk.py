"""A file system of a few megabytes, to be filled for real. Needs root, for `mount`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoSmallDisk(Exception):
    """It cannot be made here; says why."""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A tmpfs mounted on `folder`. Raises: NoSmallDisk."""
    if os.geteuid() != 0:
        raise NoSmallDisk("mounting a file system of a limited size needs root")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "stratalog-test", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoSmallDisk("there is no mount command") from None
    if done.returncode != 0:
        raise NoSmallDisk(f"mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a node that a failed test left running still has files open there.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize


def fill(path: Path, *, leave_bytes: int = 0) -> None:
    """With a file of zeros, until nothing more fits, or so much is left."""
    with path.open("wb", buffering=0) as file:
        if leave_bytes:
            file.write(b"\0" * (free_bytes(path.parent) - leave_bytes))
            return
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
