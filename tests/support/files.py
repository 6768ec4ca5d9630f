"""Looking at folders that a running node changes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path, suffix: str = "") -> list[Path]:
    """The files there, as far as they stay long enough to be listed: unlike rglob, a vanishing folder is no error."""
    return [Path(folder, name) for folder, _, names in os.walk(directory) for name in names if name.endswith(suffix)]
