"""One Spark session for all of its tests in a process: it takes seconds to start, and half a GiB. And buckets to read:
a directory, and one on a real S3 server."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.s3_servers import NO_VERSITYGW, S3Server, versitygw_binary, versitygw_server


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


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if versitygw_binary() is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(tmp_path_factory.mktemp("versitygw") / "buckets") as server:
        yield server


@pytest.fixture(params=[pytest.param("versitygw", marks=pytest.mark.real_s3)])
def bucket_url(request: pytest.FixtureRequest) -> str:
    """A bucket of its own for each test, on a real S3 server. The tests that use `bucket` read from a directory."""
    server: S3Server = request.getfixturevalue(request.param)
    return server.url(uuid4().hex)
