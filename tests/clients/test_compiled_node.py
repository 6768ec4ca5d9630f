"""The hot path compiled (decision 0028), as the image has it: it builds, and real clients see no difference.

`make test-compiled` runs all tests of real processes against it; here are those that reach every corner of a request.
`make soak` runs this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.source_tree import REPOSITORY

REACHING = ["fetch_rules", "produce_rules", "hostile_connections", "times"]


HEADER = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(),
    reason="no C compiler or no headers of Python: nothing is compiled",
)
@pytest.mark.timeout(900)
@pytest.mark.slow  # it compiles for minutes
def test_clients_see_no_difference_in_a_compiled_node(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    ran = subprocess.run(
        [str(REPOSITORY / "tools" / "compiled.sh"), str(Path(sys.executable).parent.parent), str(compiled)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"STRATALOG_COMPILE_OPT_LEVEL": "0"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tests = [f"tests/clients/test_{name}.py" for name in REACHING]
    ran = subprocess.run(
        [str(compiled / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
