"""An audit log that keeps its lines, for tests."""

from __future__ import annotations

import json
from typing import Any

from stratalog.telemetry.audit_log import AuditLog


class KeptLines:
    """A sink; while `trouble` is set it takes nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.trouble = ""
        self.tries = 0

    def write(self, line: str) -> None:
        self.tries += 1
        if self.trouble:
            raise OSError(self.trouble)
        self.texts.append(line)

    def close(self) -> None:
        pass


class KeptAudit(AuditLog):
    """Starts by itself; `written` ends it and returns what it wrote."""

    def __init__(self, **options: Any) -> None:
        self.sink = KeptLines()
        super().__init__(self.sink, "node 1", retry_s=0.001, **options)
        self.cluster_id = "cluster"
        self.start()

    def written(self) -> list[dict[str, Any]]:
        self.close()
        return [json.loads(text) for text in self.sink.texts]
