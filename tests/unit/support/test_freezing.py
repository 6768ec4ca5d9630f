"""A frozen process does nothing once `freeze` has returned, and continues on request."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.freezing import freeze

_THREADS = 8
_WRITES = f"""
import os, threading
def write():
    while True:
        os.write(1, b"." * 64)
for _ in range({_THREADS}):
    threading.Thread(target=write).start()
"""


@pytest.fixture
def writer() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _WRITES], stdout=subprocess.PIPE)
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


def test_nothing_is_written_after_the_freeze_and_it_continues_when_it_is_woken(writer: subprocess.Popen[bytes]) -> None:
    assert writer.stdout is not None
    out = writer.stdout.fileno()
    for _ in range(20):
        assert os.read(out, 4096), "its threads write"
        freeze(writer.pid)
        while select.select([out], [], [], 0)[0]:
            os.read(out, 1 << 20)
        assert not select.select([out], [], [], 0.02)[0], "no thread of it runs"
        writer.send_signal(signal.SIGCONT)


def test_a_process_that_is_gone_is_reported() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    with pytest.raises(ProcessLookupError):
        freeze(process.pid)
