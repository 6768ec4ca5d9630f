"""One Spark session for all of its tests in a process: it takes seconds to start, and half a GiB."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("Spark is not here")
    from stratalog_pipeline.jobs.session import local_session

    folder: Path = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = local_session("tests", threads=2, memory="640m", folder=folder)
    yield session
    session.stop()
