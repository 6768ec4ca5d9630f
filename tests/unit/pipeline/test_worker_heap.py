"""Only a worker of Spark has its imports kept out of garbage collections, and only once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import gc, importlib.machinery, sys, types
from stratalog_pipeline.source.worker_heap import keep_imports_out_of_collections
program = types.ModuleType("__main__")
program.__spec__ = importlib.machinery.ModuleSpec(sys.argv[1], None) if sys.argv[1] else None
print(gc.get_freeze_count() > 0, end=" ")
print(keep_imports_out_of_collections(program), gc.get_freeze_count() > 0, end=" ")
print(keep_imports_out_of_collections(program))
"""


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("pyspark.daemon", "False True True False"),
        ("pyspark.daemon_of_another", "False False False False"),
        ("", "False False False False"),
    ],
)
def test_a_worker_of_spark_freezes_its_heap_once_and_other_programs_never(program: str, told: str) -> None:
    probe = subprocess.run([sys.executable, "-c", PROBE, program], capture_output=True, text=True, check=True)
    assert probe.stdout.strip() == told
