"""`stratalog node start --read-only`: a process that reads the directory of a retired node for the other nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.waiting import eventually_sync

_STRATALOG = str(Path(sys.executable).with_name("stratalog"))


class ReadOnlyProcess:
    """Started when it is made; `until_ready` before it is relied on."""

    def __init__(self, data: Path, meta_url: str, said: Path, preexec_fn: Callable[[], None] | None = None) -> None:
        command = [_STRATALOG, "node", "start", "--read-only", "--data", str(data), "--meta", meta_url]
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", "--set", "metrics.listen="],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=preexec_fn,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def until_ready(self) -> None:
        eventually_sync(lambda: "stratalog ready: peers" in self.said() or not self.is_running, 60)
        assert self.is_running, self.said()

    def stop(self) -> None:
        """In order."""
        self._process.terminate()
        assert self._process.wait(20) == 0, self.said()

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)
