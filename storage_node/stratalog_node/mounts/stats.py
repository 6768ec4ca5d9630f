"""What this node does as the holder of mounts, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.telemetry.metrics import counter, gauge


@dataclass(slots=True)
class MountStats:
    """Register as `stratalog_mounts`."""

    held: int = gauge("Mounts that this node holds and serves.")
    waiting: int = gauge("Mounts that this node is to hold and cannot read yet; its log says why.")
    taken: int = counter("Mounts that this node began to serve.")
    given_up: int = counter("Mounts that this node gave up, for it could not read what is mounted.")
