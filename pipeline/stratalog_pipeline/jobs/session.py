"""A Spark session on this machine or on a cluster, for commands and for callers that have none."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratalog.model.errors import InvalidRequest


def local_session(
    name: str, *, threads: int | None = None, memory: str = "1g", folder: Path | None = None, jars: Sequence[str] = ()
) -> Any:
    """With the format `stratalog`. `folder` takes what Spark keeps on disk; `jars` are paths of further ones. Raises:
    InvalidRequest without Java.

    The network is loopback only, there is no page, and a thread's stack is large enough for the end of a stream.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        **({} if folder is None else _places(folder)),
        **({"spark.jars": ",".join(jars)} if jars else {}),
    }
    return _session(name, f"local[{threads or '*'}]", settings)


def cluster_session(name: str, master: str) -> Any:
    """On the executors of a Spark cluster; this process is its driver. Executors need the same version of this package,
    and the credentials of the object stores in their environment. They connect to this machine at its address, or at
    SPARK_LOCAL_IP. Raises: InvalidRequest without Java."""
    return _session(name, master, {})


def _session(name: str, master: str, more: Mapping[str, str]) -> Any:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise InvalidRequest("Spark needs Java 17 or later, and there is none on PATH: install default-jre-headless")
    # What it says of pandas concerns frames of pandas, which nothing here makes (docs/dependencies.md).
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    from stratalog_pipeline.source.data_source import register

    builder = SparkSession.builder.master(master).appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-Xss4m -Djava.net.preferIPv4Stack=true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
        **more,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def _places(folder: Path) -> dict[str, str]:
    return {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
