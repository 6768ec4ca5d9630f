"""Which failed tests say no more than that the machine was slow: something did not come within its time.

`.ci/run` runs those once more, alone, and names them; a test that found a wrong value is never tried again. A few at
most: where many run out of time something is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import NotLeader
from support.waiting import NOT_TRUE

IMPATIENT = "impatient"
MOST = 3
_WORDS = (NOT_TRUE, "Timeout (>")


def ran_out_of_patience(failure: pytest.ExceptionInfo[BaseException]) -> bool:
    error: BaseException | None = failure.value
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # an error may have itself as its cause
        if isinstance(error, TimeoutError | NotLeader) or str(error).startswith(_WORDS):
            return True
        seen.append(error)
        error = error.__cause__
    return False


def keep_names(path: Path, stats: Mapping[str, Sequence[Any]], exit_code: int = pytest.ExitCode.TESTS_FAILED) -> None:
    """Of the tests of a run that came to its end, where all that failed ran out of patience; else there is no such file
    after it."""
    reports = [*stats.get("failed", ()), *stats.get("error", ())]
    names = list(dict.fromkeys(report.nodeid for report in reports))
    is_patience_alone = all(dict(getattr(report, "user_properties", ())).get(IMPATIENT) for report in reports)
    is_whole = exit_code == pytest.ExitCode.TESTS_FAILED
    if is_whole and names and len(names) <= MOST and is_patience_alone:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    else:
        path.unlink(missing_ok=True)
