"""The load generator (bench/load, Go): built once, then one process and one JSON object per run."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class LoadFailed(Exception):
    """A run of the load generator ended with an error; the message holds what it printed."""


def missing() -> str | None:
    return None if shutil.which("go") else "go"


@dataclass(frozen=True, slots=True)
class LoadTool:
    binary: Path

    @classmethod
    def build(cls, source: Path, cache: Path) -> LoadTool:
        """Go's own cache makes this a matter of a second when nothing has changed."""
        binary = cache / "load"
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-trimpath", "-o", str(binary), "."], cwd=source, check=True, timeout=600)
        return cls(binary)

    def command(self, name: str, options: dict[str, Any]) -> list[str]:
        flags = [f"-{key.replace('_', '-')}={_text(value)}" for key, value in options.items() if value is not None]
        return [str(self.binary), name, *flags]

    def run(self, name: str, *, polite: bool = False, patience_s: float = 240, **options: Any) -> dict[str, Any]:
        """One run to its end, which comes within `patience_s`. Raises: LoadFailed."""
        return self.finish(self.begin(name, polite=polite, **options), patience_s)

    def begin(self, name: str, *, polite: bool = False, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a run. A polite one leaves the CPU to others, so that only what it asks of the server is felt."""
        prefix = ["nice", "-n", "19"] if polite else []
        process = subprocess.Popen(
            [*prefix, *self.command(name, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=polite,
        )
        if polite:
            # Where sessions share the CPU as groups (autogroup), nice counts only within one: it needs its own, and
            # that one's nice as well.
            with suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text("19", encoding="ascii")
        return process

    def finish(self, process: subprocess.Popen[bytes], patience_s: float = 240) -> dict[str, Any]:
        output, complaints = process.communicate(timeout=patience_s)
        result: dict[str, Any] = json.loads(output or b"{}")
        if process.returncode != 0 or "error" in result:
            raise LoadFailed(f"{result.get('error', '')} {complaints.decode(errors='replace')[-400:]}".strip())
        return result


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
