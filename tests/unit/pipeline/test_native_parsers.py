"""Foreign bytes never end the process that reads them, whichever library parses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive.schema_files import schema_of
from stratalog_pipeline.jobs.columns.table_layout import Kind
from support.native_parsers import PARSERS

COUNT = 1000


@pytest.mark.fault("damaged-bytes-reach-parser")
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_in_native_code_survives_damaged_bytes(name: str) -> None:
    """In a process of its own, whose death is a failure and not the end of all tests."""
    command = [sys.executable, "-m", "support.native_parsers", name, "1", str(COUNT)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{name}: {ended.returncode}\n{ended.stderr[-3000:]}"


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "nothing", "type": "null"}]}


@pytest.mark.fault("damaged-bytes-reach-parser")
@pytest.mark.parametrize("items", ["null", EMPTY, {"type": "fixed", "name": "none", "size": 0}, {"type": "null"}])
def test_a_list_whose_elements_take_no_bytes_is_refused(items: object) -> None:
    """Nine bytes stood for a billion nulls."""
    fields = [{"name": "a", "type": {"type": "array", "items": items}}]
    with pytest.raises(InvalidRequest, match="no bytes"):
        schema_of(Kind.AVRO, json.dumps({"type": "record", "name": "r", "fields": fields}).encode(), "schema")


def test_a_name_of_a_type_that_takes_no_bytes_is_refused_as_the_type_is() -> None:
    fields = [{"name": "one", "type": EMPTY}, {"name": "a", "type": {"type": "array", "items": "Empty"}}]
    with pytest.raises(InvalidRequest, match="no bytes"):
        schema_of(Kind.AVRO, json.dumps({"type": "record", "name": "r", "fields": fields}).encode(), "schema")
