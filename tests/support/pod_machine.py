"""Runs processes like a pod, without Kubernetes: names that move from address to address, a read-only root, and a user
that owns nothing.

Each runs in a mount namespace of its own, so this needs Linux and root: elsewhere the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

NO_NAMESPACES = "no mount namespaces: run as root on Linux, with unshare and setpriv (util-linux)"
USER = 10_001


@cache
def can_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "mount", "--bind", "/etc", "/etc"], capture_output=True, check=False)
    return tried.returncode == 0


class Names:
    """What names stand for, at this moment, to the processes that run with them: a file in place of /etc/hosts."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"
        self._file.write_text("127.0.0.1 localhost\n")
        self._known: dict[str, str] = {}

    def set(self, **known: str) -> None:
        """`name="127.0.0.2"` for `name.pods.test`; the file stays the same one, as those see it that have it."""
        self._known |= known
        lines = [f"{address} {name}.pods.test\n" for name, address in self._known.items()]
        self._file.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def around(self, command: list[str]) -> list[str]:
        return ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self._file), *command]


def as_pod(command: list[str], volume: Path) -> list[str]:
    """The root is read-only except for the volume, there is no home directory, and the process runs as the pods' user
    with the volume's group."""
    # This machine's interpreter may lie where only root may look: to read it is allowed, to write is what is tested.
    rights = "-all,+dac_read_search"
    user = [
        *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"),
        *(f"--inh-caps={rights}", f"--ambient-caps={rights}", f"--bounding-set={rights}"),
    ]
    mounts = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && cd / && exec "$@"'
    return ["unshare", "-m", "sh", "-c", mounts, str(volume), *user, "env", "HOME=/", "TMPDIR=/none", *command]


def mounted_volume(folder: Path) -> Path:
    """As a kubelet leaves it with `fsGroup`: of root, and of the group, which may write."""
    folder.mkdir()
    os.chown(folder, 0, USER)
    folder.chmod(0o2770)
    return folder
