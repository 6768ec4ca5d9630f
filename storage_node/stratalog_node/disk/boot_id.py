"""Identifies the present boot of the machine: within one boot, what a process wrote is still in the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """Empty if unknown (other systems than Linux). Blocking, for a moment."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
