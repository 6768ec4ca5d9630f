"""Keeps what a Python worker of Spark has imported out of its garbage collections.

Spark's daemon collects garbage after every task. Each collection walks over all that was imported (Arrow, numpy,
PySpark), which costs 60 to 100 ms of CPU: as much as reading 16 MiB of chunks. What is alive when a worker first reads
stays for the life of the worker anyway.
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Final

_DAEMON: Final = "pyspark.daemon"


def keep_imports_out_of_collections(program: ModuleType | None = None) -> bool:
    """Freezes the heap of a worker of Spark, once. Returns whether it did so now.

    A driver, or whatever else uses the source, is left alone: its heap is not ours. `program` is the module that the
    process runs.
    """
    running = sys.modules.get("__main__") if program is None else program
    spec = getattr(running, "__spec__", None)
    if spec is None or spec.name != _DAEMON or gc.get_freeze_count():
        return False
    gc.freeze()
    return True
