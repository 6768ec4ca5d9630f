"""Ctrl-C before a command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_INTERRUPTED = """import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
os.kill(os.getpid(), signal.SIGINT)
"""
_MAIN = "from stratalog_cli import entry; entry.COMMANDS['status'] = 'interrupted'; entry.main()"


def test_ctrl_c_while_a_command_is_loaded_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(_INTERRUPTED)
    ran = subprocess.run(
        [sys.executable, "-c", _MAIN, "status"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
