"""What `stratalog doctor` finds in buckets of Google Cloud Storage and Azure, and that it says what it does not ask."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from support.azure_server import AzureServer
from support.gcs_server import GcsServer

Server: TypeAlias = GcsServer | AzureServer


@pytest.fixture(params=["gcs", pytest.param("azurite", marks=pytest.mark.azurite)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


async def keys_of(url: str) -> list[str]:
    store = open_store(url)
    found = [info.key async for info in store.list("")]
    await store.close()
    return found


def doctor(url: str) -> tuple[int, dict[str, Any]]:
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", url, "--output", "json"])
    (seen,) = json.loads(ran.stdout)
    return ran.exit_code, seen


def test_doctor_tries_the_bucket_leaves_nothing_behind_and_says_what_it_did_not_ask(server: Server) -> None:
    url = server.url(f"doctor/{uuid4().hex}")
    code, seen = doctor(url)
    assert (code, seen["errors"], seen["warnings"]) == (0, 0, 0), seen
    assert seen["settings"]["put, read, delete"].startswith("work")
    assert seen["settings"]["lifecycle rules"] == "unknown: only S3 is asked"
    assert any("check that no rule deletes" in finding["next_step"] for finding in seen["findings"])
    assert asyncio.run(keys_of(url)) == []


def test_doctor_goes_no_further_without_a_bucket(server: Server) -> None:
    url = server.url().replace(f"//{server.bucket}/", "//nowhere/")
    code, seen = doctor(url)
    assert code == 3
    errors = [finding for finding in seen["findings"] if finding["severity"] == "error"]
    assert any("check the bucket's name" in error["what"] for error in errors), seen
    assert not any("s3:" in error["next_step"] for error in errors)
