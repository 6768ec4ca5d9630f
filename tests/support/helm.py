"""The helm that the tests of the charts render them with: the one on PATH, else the one that tools/helm.sh built."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.source_tree import REPOSITORY

_BUILT = REPOSITORY / ".cache" / "bin" / "helm"
NO_HELM = "no helm: run tools/helm.sh (it needs Go), or put one in PATH"


def helm_binary() -> Path | None:
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    return _BUILT if _BUILT.exists() else None
