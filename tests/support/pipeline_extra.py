"""What the pipeline's tests need: requirements/pipeline.txt, and for some of them Spark, which needs Java.

A module of such tests begins with `pytest.importorskip("fastavro", reason=NO_PIPELINE)`, for nothing else brings that.
Without the extra it is skipped as a whole, and the summary of the run says so.
"""

from __future__ import annotations

import shutil

import pytest

NO_PIPELINE = "requirements/pipeline.txt is not installed: run tools/spark.sh .venv"
NO_JAVA = "there is no java on PATH, which Spark needs: run tools/spark.sh .venv"


needs_spark = [
    pytest.mark.real_spark,
    pytest.mark.skipif(shutil.which("java") is None, reason=NO_JAVA),
    pytest.mark.timeout(600),
]
"""For tests with a Spark session. One that is cut off in the middle of a call takes the session with it, and all tests
behind: so they may take long on a busy machine."""
