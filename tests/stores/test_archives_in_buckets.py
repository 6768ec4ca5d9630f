"""Archived tables in buckets of S3, Google and Azure, by three jobs at once: files alone, Delta and Iceberg."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

from stratalog.objects import open_store
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from stratalog_pipeline.jobs.tables.table_places import table_place
from support.archived_logs import LogPlace, flights
from support.archived_tables import json_value, rows_of_table
from support.azure_server import AzureServer
from support.gcs_server import GcsServer
from support.s3_servers import S3Server

Server: TypeAlias = S3Server | GcsServer | AzureServer


_S3 = pytest.mark.real_s3
_AZURE = pytest.mark.azurite
CELLS = [
    *(pytest.param("versitygw", form, marks=_S3) for form in TableFormat),
    ("gcs", TableFormat.DELTA),
    *(pytest.param("gcs", form, marks=pytest.mark.slow) for form in (TableFormat.PARQUET, TableFormat.ICEBERG)),
    *(pytest.param("azurite", form, marks=_AZURE) for form in (TableFormat.DELTA, TableFormat.ICEBERG)),
    pytest.param("azurite", TableFormat.PARQUET, marks=[_AZURE, pytest.mark.slow]),
]


class Place(LogPlace):
    """The table lies in the server; the topic, in a folder."""

    async def rows(self, *, is_dead: bool = False) -> list[dict[str, Any]]:
        """As a reader of the format gets them out of the server."""
        if self.format is TableFormat.DELTA:
            return await asyncio.to_thread(self.read, is_dead=is_dead)
        if self.format is TableFormat.ICEBERG:
            return await asyncio.to_thread(self._by_metadata, is_dead)
        store = open_store(self.target)
        try:
            return await rows_of_table(store, f"cold/{'dead' if is_dead else 'data'}/")
        finally:
            await store.close()

    def _by_metadata(self, is_dead: bool) -> list[dict[str, Any]]:
        from stratalog_pipeline.jobs.tables.iceberg_store import FolderCatalog, StoreIO

        base = table_place(self.target).iceberg_base
        catalog = FolderCatalog(
            StoreIO(lambda: open_store(self.target), base), base, "cold/dead" if is_dead else "cold"
        )
        rows: list[dict[str, Any]] = catalog.load_table().scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: int(row.get("_offset", row.get("offset"))))


@pytest.mark.parametrize(("name", "form"), CELLS)
async def test_three_jobs_at_once_make_one_table_and_the_next_continues(
    name: str, form: TableFormat, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(name)
    place = Place(tmp_path, form)
    place.target = server.url(f"tables-{form}")
    cold = await place.fill([flights(0, 10), flights(10, 10)], [[*flights(20, 9), b"no json"]])
    await asyncio.gather(*(place.archive(commit_segments=1) for _ in range(3)))
    assert [row["flight"] for row in await place.rows()] == list(range(29))
    assert [(row["offset"], row["value"]) for row in await place.rows(is_dead=True)] == [(29, b"no json")]
    await place.fill([[json_value(30, gate="B4")]], into=cold)
    told = await place.archive()
    assert (told.already, told.rows) == (2, 1)
    assert [(row["flight"], row["gate"]) for row in await place.rows()][-2:] == [(28, None), (30, "B4")]
