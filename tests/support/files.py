"""Looking at folders that a running node changes meanwhile."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def files_below(directory: Path, suffix: str = "") -> list[Path]:
    """The files below a folder that exist long enough to be listed. Unlike rglob, it ignores folders that vanish
    meanwhile."""
    return [Path(folder, name) for folder, _, names in os.walk(directory) for name in names if name.endswith(suffix)]


def copy_below(directory: Path, target: Path) -> None:
    """The files there, as far as they stay long enough to be copied."""
    for path in files_below(directory):
        to = target / path.relative_to(directory)
        to.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copy2(path, to)
