"""A cluster's directory: its files, and the lock that the running cluster holds.

    DIR/cluster.json  DIR/options.json     cluster_record
    DIR/cluster.lock                       held by whoever runs the cluster, and by every part as long as it lives
    DIR/control.sock                       where the commands reach who runs the cluster (cluster_control)
    DIR/logs/NAME.log                      what a part prints
    DIR/security/                          of a secure cluster: certificates, keys, token (secure_files)
    DIR/NAME/                              a part's data

The parts inherit the lock, so a process that gets it knows that no process of an earlier run is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog_cli.cluster.plan import SECURITY_FOLDER, Part, Plan
from stratalog_cli.cluster.record import CLUSTER_FILE, OPTIONS_FILE, cluster_text, options_text, plan_of

_LOCK_FILE: Final = "cluster.lock"
_LOCK_WAIT_S: Final = 10.0
"""The kernel ends parts whose starter was killed at once; what they hold takes a moment to be free."""
_LONGEST_LOG: Final = 64 << 20
_TAIL_BYTES: Final = 64 << 10


class ClusterDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = -1

    # Its files ------------------------------------------------------------------------------------------
    @property
    def exists(self) -> bool:
        """Whether a cluster was made here."""
        return (self.path / CLUSTER_FILE).exists()

    def read(self) -> tuple[Plan, dict[str, int]]:
        """The plan and the pids that were noted last. Raises NotFound, InvalidRequest."""
        if not self.exists:
            raise NotFound(
                f"there is no cluster in {self.path}: name the directory of one with --data, or create one there: "
                f"`stratalog cluster start --data {self.path}`"
            )
        try:
            cluster = (self.path / CLUSTER_FILE).read_text(encoding="utf-8")
            options = (self.path / OPTIONS_FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self.path} cannot be read as a cluster ({error}): put back what is gone") from None
        return plan_of(cluster, options, where=str(self.path))

    def require_new(self) -> None:
        """Raises InvalidRequest when something else lies here."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidRequest(f"--data {self.path} is not a directory: choose another one")
        own = {OPTIONS_FILE, "cluster.lock", "control.sock", "logs", SECURITY_FOLDER}
        found = sorted(set(os.listdir(self.path)) - own) if self.path.is_dir() else []
        if not found:
            return
        what = f"it holds {', '.join(found[:3])}"
        if {"node", "meta"} & set(found):
            what = "it is the data directory of a single node (`stratalog start --data` runs it)"
        raise InvalidRequest(
            f"--data {self.path} is not the directory of a cluster, {what}: choose a new or an empty one"
        )

    def write(self, plan: Plan, pids: Mapping[str, int], page: str | None = None) -> None:
        self._replace(CLUSTER_FILE, cluster_text(plan, pids, page))

    def write_options(self, plan: Plan) -> None:
        self._replace(OPTIONS_FILE, options_text(plan.choices), mode=0o600)  # a bucket's URL may hold a secret

    def _replace(self, name: str, text: str, mode: int = 0o644) -> None:
        new = self.path / f"{name}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / name)

    # Its lock -----------------------------------------------------------------------------------------------
    @property
    def lock(self) -> int:
        """The descriptor that parts inherit."""
        return self._lock

    @property
    def is_untouched(self) -> bool:
        """No run has held the lock yet, so none can still have the ports."""
        return not (self.path / _LOCK_FILE).exists()

    async def hold(self) -> None:
        """Makes the directory when it is missing. Raises Conflict when a run of the cluster is not over."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = asyncio.get_running_loop().time() + _LOCK_WAIT_S
        while not self._try_lock():
            if asyncio.get_running_loop().time() > deadline:
                raise Conflict(
                    f"parts of an earlier run of the cluster in {self.path} are still running, without the "
                    f"cluster: stop them "
                    f"(their pids are in {self.path / CLUSTER_FILE}), then start it again"
                )
            await asyncio.sleep(0.05)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # Logs -------------------------------------------------------------------------------------------------------
    def log_of(self, part: Part) -> Path:
        return self.path / "logs" / f"{part.name}.log"

    def open_log(self, part: Part) -> tuple[int, int]:
        """A descriptor to append to, and the log's size so far. One that has grown long makes way for a new one."""
        path = self.log_of(part)
        path.parent.mkdir(exist_ok=True)
        if path.exists() and path.stat().st_size > _LONGEST_LOG:
            path.replace(path.with_suffix(".log.1"))
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return log, os.fstat(log).st_size

    def log_since(self, part: Part, begin: int) -> bytes:
        try:
            with self.log_of(part).open("rb") as file:
                file.seek(begin)
                return file.read()
        except FileNotFoundError:
            return b""

    def log_tail(self, part: Part, begin: int, lines: int = 5) -> list[str]:
        """The last lines that it printed since `begin`."""
        tail = self.log_since(part, begin)[-_TAIL_BYTES:].decode(errors="replace").splitlines()
        return [line[:300] for line in tail if line.strip()][-lines:]
