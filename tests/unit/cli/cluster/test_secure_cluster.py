"""What `cluster start --secure` plans and makes: a listener for clients, certificates, a token, an admin."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stratalog.machines.sasl.scram import is_password
from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded
from stratalog.model.listeners import SecurityProtocol
from stratalog.model.scram import ScramMechanism
from stratalog.tls.authority import hosts_of, load_certificate, node_holder
from stratalog_cli.cluster.plan import (
    MOST_SECURE_NODES,
    SECURE_SETTINGS,
    Asked,
    Plan,
    Programs,
    Role,
    command_of,
    first_plan,
    next_plan,
    secured,
)
from stratalog_cli.cluster.record import cluster_text, options_text, plan_of
from stratalog_cli.cluster.secure_files import SecureFiles
from stratalog_cli.connect.client_settings import read_client_settings
from stratalog_cli.security.certificate_folder import read_authority, write_holder
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock

HERE = Path("/data/c")


def plan(nodes: int = 3, port_base: int | None = None) -> Plan:
    return secured(first_plan(Asked(nodes, port_base, is_secure=True), has_etcd=True), HERE)


def test_clients_come_to_the_listener_with_tls_and_nodes_to_another_one() -> None:
    made = plan()
    words = command_of(made.part("node-2"), made, HERE, Programs(("stratalog",), None))
    assert made.bootstrap.split(",")[1] == "127.0.0.1:9093"
    assert words[words.index("--listen") + 1] == made.part("node-2").addresses["internal"] != "127.0.0.1:9093"
    for setting in (
        "listeners=clients://127.0.0.1:9093",
        "listener.security.protocol.map=clients:SASL_SSL",
        "ssl.certificate.folder=/data/c/security/node-2",
        "auth.token.file=/data/c/security/token",
        "authorizer.class.name=stratalog",
        "super.users=User:admin",
    ):
        assert setting in words
    assert "--client-config /data/c/security/admin.properties" in made.context_options()


def test_a_meta_service_has_no_listener_of_clients() -> None:
    made = plan()
    words = command_of(made.part("meta-1"), made, HERE, Programs(("stratalog",), None))
    assert "auth.token.file=/data/c/security/token" in words
    assert not [one for one in words if one.startswith(("listeners", "listener.", "ssl."))]


@pytest.mark.parametrize("base", [1, 65_436])
def test_no_port_is_given_twice_and_all_lie_in_the_block(base: int) -> None:
    made = plan(MOST_SECURE_NODES, base)
    ports = [int(one.rpartition(":")[2]) for part in made.parts for one in part.addresses.values()]
    ports.append(made.choices.ports.page)
    assert len(set(ports)) == len(ports) and min(ports) == base and max(ports) < base + 100
    with pytest.raises(LimitExceeded):
        made.with_one_more_node()
    with pytest.raises(InvalidRequest, match="expected 1 to 19"):
        plan(MOST_SECURE_NODES + 1)


def test_the_files_remember_that_it_is_secure() -> None:
    made = plan()
    again, _ = plan_of(cluster_text(made, {}), options_text(made.choices), where="here")
    assert again == made
    added, part = again.with_one_more_node()
    assert set(part.addresses) == {"kafka", "admin", "internal"} and added.choices.is_secure


def test_a_cluster_that_was_moved_finds_its_files() -> None:
    moved = secured(next_plan(plan(), Asked()), Path("/elsewhere"))
    assert moved.choices.settings["auth.token.file"] == "/elsewhere/security/token"


def test_an_open_cluster_does_not_become_a_secure_one_by_a_later_start() -> None:
    with pytest.raises(Conflict, match="without --secure"):
        next_plan(first_plan(Asked(), has_etcd=True), Asked(is_secure=True))


@pytest.mark.parametrize("key", SECURE_SETTINGS)
def test_settings_whose_files_are_made_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="makes its own files"):
        first_plan(Asked(settings=(f"{key}=x",), is_secure=True), has_etcd=True)


# Files ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path: Path) -> SecureFiles:
    files = SecureFiles(tmp_path)
    files.make(plan().of(Role.NODE), plan().bootstrap)
    return files


def test_only_the_owner_reads_what_is_made(files: SecureFiles) -> None:
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    secret = [
        files.folder / name
        for name in ("token", "admin.properties", "admin.conf", "authority/ca.key", "node-1/tls.key")
    ]
    assert {stat.S_IMODE(one.stat().st_mode) for one in secret} == {0o600}


def test_a_later_start_keeps_what_is_there(files: SecureFiles) -> None:
    before = {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()}
    files.make(plan().of(Role.NODE), plan().bootstrap)
    assert {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()} == before


def test_settings_of_clients_are_those_of_the_listener(files: SecureFiles) -> None:
    java = read_client_settings(files.client_file, {})
    librdkafka = read_client_settings(files.librdkafka_file, {})
    assert (java.protocol, java.mechanism, java.user) == (SecurityProtocol.SASL_SSL, "SCRAM-SHA-512", "admin")
    assert java.password == librdkafka.password and len(java.password) == 32
    assert java.authorities == librdkafka.authorities == str(files.folder / "authority" / "ca.crt")


def test_a_certificate_that_ends_soon_is_renewed_by_a_start(files: SecureFiles) -> None:
    authority, folder = read_authority(files.folder / "authority"), files.folder / "node-1"
    ends_soon = authority.issue(node_holder(1, ["127.0.0.1"]), timedelta(days=3), datetime.now(UTC))
    write_holder(folder, ends_soon, authority, is_replacing=True)
    files.make(plan().of(Role.NODE), plan().bootstrap)
    renewed = load_certificate((folder / "tls.crt").read_bytes())
    assert renewed.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)
    assert hosts_of(renewed) == ["127.0.0.1"]


async def test_the_admin_is_created_once_and_not_again_after_somebody_deleted_it(files: SecureFiles) -> None:
    service = MetaService(MemoryStore(), HandClock(), lease_ms=60_000)
    await service.start()
    server = MetaServer(service)
    url = await server.start("127.0.0.1", 0)
    try:
        await files.create_admin(url, None)
        (kept,) = (await service.snapshot()).credentials
        password = read_client_settings(files.client_file, {}).password
        assert kept.user == "admin" and is_password(ScramMechanism.SCRAM_SHA_512, kept.credential, password)
        await files.create_admin(url, None)
        assert (await service.snapshot()).credentials == (kept,)
        assert not list(files.folder.glob("*.new"))
    finally:
        await server.close()
        await service.close()
