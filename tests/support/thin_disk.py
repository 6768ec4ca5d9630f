"""A disk that promises more than it has: ext4 on a loop device whose image runs out of room. Writes land in the page
cache and are lost when the kernel writes them back, as on a thin volume or a failing disk. Needs root, for `mount`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.small_disk import NoSmallDisk, small_disk

_PROMISED_BYTES = 64 << 20
_THERE_BYTES = 8 << 20


class ThinDisk:
    def __init__(self, root: Path, pool: Path) -> None:
        self.root = root
        self._image = pool / "image"
        self._filler = pool / "filler"

    def run_out(self) -> None:
        """From now on blocks that were never written before cannot be written back."""
        with open(self._filler, "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError:
                return

    def grow(self) -> None:
        """There is room again."""
        self._filler.unlink()

    def forget_cache(self) -> None:
        """Drops everything that is only in memory. Requires: no process has a file open there."""
        subprocess.run(["umount", str(self.root)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.root)], check=True)


@contextmanager
def thin_disk(folder: Path, *, at: Path | None = None) -> Iterator[ThinDisk]:
    """Mounted `at` a place, or below `folder`. Raises: NoSmallDisk."""
    if shutil.which("mkfs.ext4") is None or not os.path.exists("/dev/loop-control"):
        raise NoSmallDisk("needs mkfs.ext4 and loop devices")
    with ExitStack() as mounted:
        pool = mounted.enter_context(small_disk(folder / "pool", _THERE_BYTES))
        image, root = pool / "image", at or folder / "disk"
        root.mkdir(parents=True)
        with open(image, "wb") as file:
            file.truncate(_PROMISED_BYTES)
        # Without a journal of its own it does not stop for what it cannot write.
        make = ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", "-N", "64", str(image)]
        for command in (make, ["mount", "-o", "loop", str(image), str(root)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NoSmallDisk(f"{command[0]}: {done.stderr.strip()}")
        mounted.callback(subprocess.run, ["umount", "-l", str(root)], check=True)
        yield ThinDisk(root, pool)
