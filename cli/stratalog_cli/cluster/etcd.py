"""Finds this machine's etcd: the one on PATH, unless its version may lose data, as that of Debian 12 may."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from stratalog.model.etcd_versions import is_affected

_ANSWER_SECONDS = 30.0


def find_etcd() -> Path | None:
    """The path of `etcd`; None when there is none that is safe."""
    found = shutil.which("etcd")
    return None if found is None or is_affected(etcd_version(Path(found))) else Path(found)


def etcd_version(path: Path) -> str:
    """As the program itself says it; empty where it says nothing of the kind."""
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"etcd Version: *(\S+)", output)
    return "" if found is None else found[1]
