"""What the pod of an ArchiveJob runs: the command of its specification, with its environment, against a real S3 server;
and its report as the status of the object has it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.job_report import decode_report
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_operator.specs.archive_job import REPORT_FILE, requested_job
from support.archived_tables import add_segment, json_value, rows_of_table
from support.cold_data import ColdShard
from support.golden_specs import cluster, job, jobs
from support.s3_servers import (
    ACCESS_KEY,
    NO_VERSITYGW,
    REGION,
    SECRET_KEY,
    S3Server,
    versitygw_binary,
    versitygw_server,
)

SECRET = {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY}


def _pod(manifest: Any) -> Any:
    template = manifest["spec"].get("jobTemplate", manifest)
    return template["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if versitygw_binary() is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(tmp_path_factory.mktemp("s3") / "data") as server:
        yield server


@pytest.mark.real_s3
async def test_the_command_of_a_pod_archives_with_the_credentials_of_its_secret(
    server: S3Server, tmp_path: Path
) -> None:
    store = open_store(server.url("main"))
    cold = ColdShard(store)
    await add_segment(cold, [[json_value(number) for number in range(6)]])
    await store.close()
    tier = {
        "bucket": server.bucket,
        "prefix": "main",
        "endpoint": server.endpoint,
        "region": REGION,
        "credentialsSecretRef": "store",
    }
    to = f"s3://{server.bucket}/tables?endpoint={server.endpoint}&region={REGION}"
    asked = job("Archive", topics=["cold"], archive={"to": to}, spark={"cores": 0})
    made = _pod(
        requested_job(cluster({"coldTier": tier}), cold.names.cluster_id, "n", "u", asked, "2013-01-01T00:00:00Z")
    )

    report = tmp_path / "termination-log"
    report.touch()
    words = [str(report) if word == REPORT_FILE else word for word in made["command"]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "STRATALOG_"))}
    for one in made["env"]:
        chosen = one.get("valueFrom", {}).get("secretKeyRef", {})
        if one.get("value") or chosen.get("key") in SECRET:
            environment[one["name"]] = one.get("value") or SECRET[chosen["key"]]
    words[0] = str(Path(sys.executable).with_name("stratalog"))
    done = await asyncio.to_thread(subprocess.run, words, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    left = decode_report(report.read_text())
    assert (left.action, left.segments, left.rows, left.lag_records, left.is_committed) == ("archive", 1, 6, 0, True)
    table = open_store(server.url("tables"))
    assert len(await rows_of_table(table, "cold/data/")) == 6
    await table.close()


def test_each_option_of_each_pod_is_one_of_its_command() -> None:
    """Of the kept specifications: one that is renamed in the command line would fail in every pod."""
    assert len(jobs()) == 4
    for manifest in jobs():
        command = _pod(manifest)["command"]
        at = command.index("--")
        for words, path in ((command[:at], ["pipeline", "run"]), (command[at + 1 :], ["pipeline", command[at + 1]])):
            shown = CliRunner().invoke(build_app(("pipeline",)), [*path, "--help"], env={"COLUMNS": "200"}).output
            options = [word for word in words if word.startswith("--")]
            assert options and not [word for word in options if word not in shown], words


def test_credentials_of_its_own_take_the_place_of_the_cluster_s() -> None:
    tier = {"bucket": "flights", "type": "gcs", "serviceAccountName": "cloud"}
    own = replace(cluster({"coldTier": tier}))
    asked = job("Verify", credentialsSecretRef="mine")
    manifest: Any = requested_job(own, "c", "n", "u", asked, "2013-01-01T00:00:00Z")
    spec = manifest["spec"]["template"]["spec"]
    assert "serviceAccountName" not in spec
    assert [one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one] == ["mine"]


def test_a_url_puts_no_variable_of_the_pod_into_its_command() -> None:
    """It would show the key of the store to the server that the URL names."""
    url = "s3://tables/$(AWS_SECRET_ACCESS_KEY)?endpoint=https://example.com/$$(AWS_SECRET_ACCESS_KEY)$"
    asked = job("Archive", topics=["a"], archive={"to": url})
    own = cluster({"coldTier": {"bucket": "flights", "credentialsSecretRef": "store"}})
    words = _pod(requested_job(own, "c", "n", "u", asked, "2013-01-01T00:00:00Z"))["command"]

    def expanded(word: str) -> str:
        """As Kubernetes does it (`$$` is a dollar)."""
        return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else SECRET_KEY, word)

    given = [expanded(word) for word in words]
    assert given[given.index("--to") + 1] == url
    assert SECRET_KEY not in " ".join(given)
