"""How a node divides its process's file descriptors, so that clients cannot take those that data needs.

segment files 3/8, a quarter of that on top while flushes are waited for (`disk/descriptors.py`)
Kafka clients 1/4
HTTP ports 1/16 each
the rest for metadata, checkpoints, journals, files made ahead (16 at most) and the object store
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

_MOST_SEGMENT_FILES = 65_536
_NO_LIMIT = 1 << 20
_LEAST_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Shares of descriptors. Each is a limit; what the settings say may be lower."""

    segment_files: int
    kafka_connections: int
    http_connections: int
    """Limit for one port."""

    @classmethod
    def of(cls, most: int) -> OpenFiles:
        """For a process that may open `most` files."""
        return cls(
            min(most * 3 // 8, _MOST_SEGMENT_FILES),
            max(most // 4, _LEAST_CONNECTIONS),
            max(most // 16, _LEAST_CONNECTIONS),
        )

    @classmethod
    def of_process(cls) -> OpenFiles:
        """For this process, whose limit is raised as far as possible."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        return cls.of(_NO_LIMIT if soft == resource.RLIM_INFINITY else soft)
