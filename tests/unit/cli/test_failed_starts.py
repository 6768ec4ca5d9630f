"""A process that cannot start says why, exits 3, and leaves nothing behind; so does each part of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.model.errors import Unavailable
from stratalog.settings.process import ProcessSettings
from stratalog_cli.cluster.record import CLUSTER_FILE
from stratalog_cli.entry import build_app
from stratalog_cli.services.process_services import ProcessServices
from stratalog_meta.service import MetaService, open_service
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from support.certificates import DAY, Authority
from support.cluster_ports import free_block
from support.node_process import NodeFailed, NodeProcess
from support.open_resources import open_resources
from support.waiting import eventually


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that another process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.mark.fault("start-fails-midway-address")
def test_a_process_whose_admin_address_is_taken_says_so_and_the_next_one_starts(tmp_path: Path, taken: str) -> None:
    node = NodeProcess(tmp_path / "data", None, {"metrics.listen": taken})
    node.bootstrap = "127.0.0.1:0"
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    told = str(failure.value)
    assert f"cannot start: metrics.listen={taken}" in told and "Traceback" not in told
    assert f"process {os.getpid()}, " in told and "--set metrics.listen=HOST:PORT" in told
    assert not (tmp_path / "data").exists()
    node.settings["metrics.listen"] = "127.0.0.1:0"
    with node:
        assert node.admin


@pytest.mark.parametrize("verb", [("start",), ("node", "start"), ("meta", "start")], ids=" ".join)
def test_a_taken_kafka_or_meta_address_is_reported_with_who_has_it_and_nothing_is_made(
    tmp_path: Path, taken: str, verb: tuple[str, ...]
) -> None:
    arguments = ("--meta", "http://127.0.0.1:1", "--id", "1") if verb[0] == "node" else ()
    node = NodeProcess(tmp_path / "data", verb=verb, arguments=arguments)
    node.bootstrap = taken
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    told = str(failure.value)
    assert f"cannot start: --listen={taken}: cannot listen there" in told
    assert f"process {os.getpid()}, " in told and "another with --listen HOST:PORT" in told
    assert not (tmp_path / "data").exists()


def test_an_address_whose_name_no_one_knows_is_reported_and_nothing_is_made(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.bootstrap = "nowhere.invalid:9092"
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    assert "cannot start: --listen=nowhere.invalid:9092: cannot listen there" in str(failure.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.fault("token-replaced-cluster-runs")
@pytest.mark.parametrize("verb", [("start",), ("node", "start"), ("meta", "start")], ids=" ".join)
@pytest.mark.parametrize(("held", "told"), [(None, "cannot be read"), ("short", "line 1: expected"), ("", "no token")])
def test_a_token_file_that_cannot_be_used_is_a_wrong_setting_and_nothing_is_made(
    tmp_path: Path, verb: tuple[str, ...], held: str | None, told: str
) -> None:
    tokens = tmp_path / "token"
    if held is not None:
        tokens.write_text(held)
    arguments = ("--meta", "http://127.0.0.1:1", "--id", "1") if verb[0] == "node" else ()
    node = NodeProcess(tmp_path / "data", None, {"auth.token.file": tokens}, verb=verb, arguments=arguments)
    with pytest.raises(NodeFailed, match="ended with code 2") as failure:
        node.start()
    assert f"token file {tokens}" in str(failure.value) and told in str(failure.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("verb", [("start",), ("node", "start")], ids=" ".join)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nothing", "tls.crt does not exist"),
        ("no certificate", "the certificate cannot be read"),
        ("another key", "the private key cannot be used with the certificate"),
        ("expired", "the certificate of CN=node expired at"),
    ],
)
def test_certificates_that_cannot_be_used_are_a_wrong_setting_and_nothing_is_made(
    tmp_path: Path, verb: tuple[str, ...], what: str, told: str
) -> None:
    folder, authority = tmp_path / "tls", Authority()
    if what != "nothing":
        authority.issue("node", begins=-2 * DAY, ends=-DAY if what == "expired" else DAY).write_folder(folder)
    if what == "no certificate":
        (folder / "tls.crt").write_text("nothing")
    if what == "another key":
        (folder / "tls.key").write_bytes(authority.issue("other").key)
    arguments = ("--meta", "http://127.0.0.1:1", "--id", "1") if verb[0] == "node" else ()
    settings = {
        "listeners": "safe://127.0.0.1:0",
        "listener.security.protocol.map": "safe:SSL",
        "ssl.certificate.folder": folder,
    }
    node = NodeProcess(tmp_path / "data", None, settings, verb=verb, arguments=arguments)
    with pytest.raises(NodeFailed, match="ended with code 2") as failure:
        node.start()
    assert str(folder) in str(failure.value) and told in str(failure.value)
    assert not (tmp_path / "data").exists()


def test_a_cluster_whose_ports_are_taken_makes_nothing(tmp_path: Path) -> None:
    base = free_block()
    data = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", base)):
        ran = CliRunner().invoke(
            build_app(("cluster",)), ["cluster", "start", "--data", str(data), "--port-base", str(base)]
        )
    assert ran.exit_code == 3 and f"process {os.getpid()}, " in ran.stderr
    assert not data.exists()


@pytest.mark.fault("metadata-store-emptied-cut")
def test_a_data_directory_whose_metadata_are_gone_is_refused_until_they_are_back(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    with node:
        cluster_id = json.loads(node.get("/v1/status"))["cluster_id"]
    meta, node_file = tmp_path / "data" / "meta", tmp_path / "data" / "node" / "node.json"
    assert json.loads(node_file.read_text())["cluster_id"] == cluster_id
    meta.rename(tmp_path / "backup")
    for _ in range(2):
        with pytest.raises(NodeFailed, match="ended with code 3") as failure:
            node.start()
        told = str(failure.value)
        assert f"cannot start: {meta}: " in told and f"{node_file} names a cluster" in told
        assert not meta.exists()
    (tmp_path / "backup").rename(meta)
    with node:
        assert json.loads(node.get("/v1/status"))["cluster_id"] == cluster_id


def test_a_node_of_its_own_does_not_start_in_the_directory_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / CLUSTER_FILE).write_text("{}")
    node = NodeProcess(tmp_path)
    with pytest.raises(NodeFailed, match="ended with code 2") as failure:
        node.start()
    assert f"`stratalog cluster start --data {tmp_path}`" in str(failure.value)
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == []


@pytest.mark.fault("metadata-store-emptied-cut")
async def test_a_first_start_that_ended_between_the_metadata_and_node_json_continues(tmp_path: Path) -> None:
    meta = open_service(tmp_path / "data" / "meta", wall_ms)
    await meta.start()
    await meta.close()
    node = NodeProcess(tmp_path / "data")
    await asyncio.to_thread(node.start)
    assert json.loads(node.get("/v1/status"))["cluster_id"] == meta.cluster_id
    await asyncio.to_thread(node.stop)


async def test_process_services_that_cannot_all_start_leave_nothing_behind(tmp_path: Path, taken: str) -> None:
    meta = MetaService(MemoryStore(), wall_ms)
    await meta.start()
    settings = ProcessSettings(metrics_listen=taken, meta_listen="127.0.0.1:0", offsets_topic_num_partitions=1)
    node = StorageNode(settings, tmp_path / "node", Listen("127.0.0.1", 0), meta, None)
    await node.start()
    before = open_resources()
    with pytest.raises(Unavailable, match=r"metrics\.listen"):
        await ProcessServices(node, meta, settings, tmp_path, None).start()
    await eventually(lambda: open_resources() <= before)
    await node.close()
    await meta.close()


@pytest.mark.parametrize("is_file", [False, True], ids=["nothing", "a file"])
def test_a_directory_of_no_node_is_reported_before_a_meta_service_is_waited_for(tmp_path: Path, is_file: bool) -> None:
    data = tmp_path / "data"
    if is_file:
        data.touch()
    node = NodeProcess(data, verb=("node", "start"), arguments=("--read-only", "--meta", "http://127.0.0.1:1"))
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    told = str(failure.value)
    assert "is not there: name the --data DIR of the node that was retired" in told
    assert "waiting for the meta service" not in told


def test_metadata_that_would_be_below_a_file_are_no_matter_of_room(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    node = NodeProcess(tmp_path / "data")
    with pytest.raises(NodeFailed, match="ended with code 3") as failure:
        node.start()
    assert "Not a directory: name another directory by --data" in str(failure.value)
