"""Free ports: one, or a block of 100 for `stratalog cluster start --port-base`.

Below the kernel's range of ephemeral ports, so that no client of another test takes one meanwhile.
"""

from __future__ import annotations

import random
import socket

_USED = (*range(6), *range(20, 26), *range(40, 43), *range(50, 53), *range(60, 63), *range(70, 73), 80)
"""What a cluster of six nodes takes of its block, and its cluster UI."""


def free_port() -> int:
    for _ in range(1_000):
        port = random.randrange(12_000, 32_000)
        if _is_free(port):
            return port
    raise RuntimeError("no free port")


def free_block() -> int:
    """Its first port."""
    for _ in range(1_000):
        base = random.randrange(12_000, 31_900, 100)
        if all(_is_free(base + at) for at in _USED):
            return base
    raise RuntimeError("no free block of ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
