"""Reports of runs: every report fits into a termination message and comes back as it was; whatever else a pod leaves
there is refused, or bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.model.job_report import MAX_BYTES, MAX_MESSAGE, JobReport, bounded_words, decode_report, encode_report

COUNTS = st.integers(0, 2**63 - 1)
REPORTS = st.builds(
    JobReport,
    action=st.sampled_from(["archive", "compact", "verify", "export"]),
    exit_code=st.integers(0, 255),
    started_ms=COUNTS,
    finished_ms=COUNTS,
    segments=COUNTS,
    rows=COUNTS,
    bytes=COUNTS,
    findings=COUNTS,
    lag_records=st.none() | COUNTS,
    is_committed=st.booleans(),
    message=st.text(max_size=6000),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(REPORTS)
def test_a_report_fits_and_comes_back(report: JobReport) -> None:
    text = encode_report(report)
    assert len(text.encode()) <= MAX_BYTES and "\n" not in text
    read = decode_report(text)
    assert read.message == bounded_words(read.message)
    assert read == JobReport(**{name: getattr(report, name) for name in _NAMES}, message=read.message)
    assert bounded_words(report.message).startswith(read.message.removesuffix(" …"))


_NAMES = [name for name in JobReport.__dataclass_fields__ if name != "message"]


@given(REPORTS, st.sampled_from([*_NAMES, "message", "version"]), JSON)
def test_a_report_with_any_other_value_is_refused_or_bounded(report: JobReport, field: str, value: Any) -> None:
    told = {**json.loads(encode_report(report)), field: value, "of_a_later_version": value}
    try:
        read = decode_report(json.dumps(told))
    except InvalidRequest:
        return
    assert len(read.message) <= MAX_MESSAGE and read.message.isprintable() and len(read.action) <= 32
    numbers = [read.exit_code, read.started_ms, read.finished_ms, read.segments, read.rows, read.bytes, read.findings]
    assert all(type(number) is int and 0 <= number < 2**63 for number in numbers)
    assert read.lag_records is None or 0 <= read.lag_records < 2**63


@pytest.mark.parametrize("text", ["", "OOM", "[1]", "{}", "[" * 50_000, "x" * 100_000, '{"version": 1}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_report(text)


def test_words_lose_what_could_steer_a_terminal() -> None:
    assert bounded_words("a\x1b[31mb\n\tc\u202e") == "a [31mb c"
