"""The audit log of a process, by its settings: where it goes, and who it is in each line."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.audit_file import AuditFile, AuditSink, AuditStream
from stratalog.telemetry.audit_log import AuditLog


def open_audit(settings: ProcessSettings, part: str, running: AsyncExitStack) -> AuditLog:
    """Started; closed with `running`, after what was started later. `part` names the process, such as `node 1`."""
    sink: AuditSink | None = None
    if settings.audit_log_enable and settings.audit_log_dir:
        sink = AuditFile(
            Path(settings.audit_log_dir) / f"audit-{part.replace(' ', '-')}.log",
            most_bytes=settings.audit_log_file_max_bytes,
            most_files=settings.audit_log_file_max_count,
        )
    elif settings.audit_log_enable:
        sink = AuditStream(sys.stderr)
    audit = AuditLog(sink, part, window_ms=settings.audit_log_window_ms)
    audit.start()

    async def close() -> None:
        await asyncio.to_thread(audit.close)

    running.push_async_callback(close)
    return audit
