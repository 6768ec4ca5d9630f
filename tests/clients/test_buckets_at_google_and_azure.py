"""A node whose bucket is at Google or Azure: data goes there in the class of its topic, and consumers read it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from support.azure_server import NO_AZURITE, AzureServer, access_tier, azurite_program, azurite_server
from support.gcs_server import GcsServer, gcs_server
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

pytestmark = pytest.mark.thorough

VALUES = [b"%d" % number + bytes(1_000) for number in range(20)]


@pytest.fixture(params=["gcs", pytest.param("azurite", marks=pytest.mark.azurite)])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GcsServer | AzureServer]:
    if request.param == "gcs":
        with gcs_server(tmp_path, "stratalog-node") as at_google:
            yield at_google
        return
    if azurite_program() is None:
        pytest.skip(NO_AZURITE)
    with azurite_server(tmp_path / "azurite.log") as at_azure:
        yield at_azure


async def keys_of(url: str) -> list[str]:
    store = open_store(url)
    found = [info.key async for info in store.list("")]
    await store.close()
    return found


def test_cold_data_is_in_its_class_and_is_read_back_and_doctor_checks_it(
    start_node: Callable[..., NodeProcess], topic: str, bucket: GcsServer | AzureServer
) -> None:
    url = bucket.url("node")
    node = start_node(url, {"remote.upload.interval.ms": 100, "log.retention.check.interval.ms": 100})
    asked, given = ("NEARLINE", "NEARLINE") if isinstance(bucket, GcsServer) else ("COOL", "Cool")
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1, "remote.storage.class": asked})
    produce(node.bootstrap, topic, VALUES)
    admin = AdminClient(node.admin)
    admin.seal(SealRequest(topic=topic))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, 30)
    keys = asyncio.run(keys_of(url))
    chunks = {key for key in keys if key.endswith(".chunk")}
    classes = {
        key: bucket.classes[f"/{bucket.bucket}/node/{key}"]
        if isinstance(bucket, GcsServer)
        else access_tier(bucket, f"node/{key}")
        for key in keys
        if key in chunks or key.endswith(".manifest")
    }
    assert {classes[key] for key in chunks} == {given}
    assert given not in {found for key, found in classes.items() if key not in chunks}, "small objects are not"
    assert values_of(read(node.bootstrap, topic, len(VALUES))) == VALUES
    node.stop()
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", url, "--output", "json"])
    (seen,) = json.loads(ran.stdout)
    assert (ran.exit_code, seen["errors"], seen["warnings"]) == (0, 0, 0), seen
    assert seen["segments"] > 0
