"""Which versions of etcd may lose or corrupt data that they confirmed.

3.5.0 to 3.5.2 may, after a kill under load. Later releases up to 3.5.21 have repaired more: a crash while a member
defragments, watch events that are lost, hashes that differ after a compaction. Older lines count as affected.

Pure. Source: docs/dependencies.md.
"""

from __future__ import annotations

import re
from typing import Final

FIRST_SAFE: Final = "3.5.21"

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)", re.ASCII)


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Of `3.5.21`, `v3.5.21` and `v3.6.0-rc.1`; None for what names no release."""
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def is_affected(text: str) -> bool:
    """False also for what names no release: whoever must know that it is safe asks `parse_version` first."""
    found, safe = parse_version(text), parse_version(FIRST_SAFE)
    return found is not None and safe is not None and found < safe
