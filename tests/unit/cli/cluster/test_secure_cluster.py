"""What `cluster start --secure` plans and makes: a listener for clients, certificates, a token, an admin."""

from __future__ import annotations

import json
import shlex
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509 import Certificate

from stratalog.connect.client_settings import read_client_settings
from stratalog.machines.sasl.scram import is_password
from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded
from stratalog.model.listeners import SecurityProtocol
from stratalog.model.roles import Role as TokenRole
from stratalog.model.scram import ScramMechanism
from stratalog.model.tokens import digest_of, parse_named_tokens
from stratalog.telemetry.token_file import TokenFile
from stratalog.tls.authority import hosts_of, is_issued_by, load_certificate, node_holder, uris_of
from stratalog_cli.cluster.access import parts_access
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import (
    ETCD_CLIENT,
    MOST_SECURE_NODES,
    PAGE,
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
from stratalog_cli.cluster.secure_files import SecureFiles, page_tokens
from stratalog_cli.cluster.starter import Starter
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
        "auth.role.tokens.file=/data/c/security/roles",
        "authorizer.class.name=stratalog",
        "super.users=User:admin",
    ):
        assert setting in words
    assert "--client-config /data/c/security/admin.properties" in made.context_options()


def test_the_printed_command_takes_a_folder_whose_name_has_a_space() -> None:
    made = secured(first_plan(Asked(is_secure=True), has_etcd=True), Path("/data/my cluster"))
    words = shlex.split(made.context_options())
    assert words[words.index("--client-config") + 1] == "/data/my cluster/security/admin.properties"
    assert words[words.index("--certificate-folder") + 1] == "/data/my cluster/security/operator"


def test_a_meta_service_has_no_listener_of_clients() -> None:
    made = plan()
    words = command_of(made.part("meta-1"), made, HERE, Programs(("stratalog",), None))
    assert "auth.role.tokens.file=/data/c/security/roles" in words
    assert not [one for one in words if one.startswith(("listeners", "listener."))]


# TLS between the parts --------------------------------------------------------------------------------------------
ETCD = Path("/usr/bin/etcd")


def words_of(name: str, made: Plan) -> list[str]:
    return command_of(made.part(name), made, HERE, Programs(("stratalog",), ETCD))


def of_earlier_version(made: Plan) -> Plan:
    """As it was before there was TLS between the parts."""
    return replace(made, choices=replace(made.choices, parts_have_tls=False, etcd_has_tls=False))


def test_no_part_listens_or_dials_in_plain_text() -> None:
    made = plan()
    for part in made.parts:
        words = words_of(part.name, made)
        assert not [one for one in words if "http://" in one], part.name
        if part.role is not Role.ETCD:
            assert "http.security.protocol=SSL" in words
            assert f"ssl.certificate.folder=/data/c/security/{part.name}" in words
        assert ("security.inter.broker.protocol=SSL" in words) is (part.role is Role.NODE)
    assert "http://" not in made.context_options()
    assert "--certificate-folder /data/c/security/operator" in made.context_options()
    assert "--token-file" not in made.context_options()
    assert f"--admin https://{made.part('node-1').addresses['admin']}," in made.context_options()


def test_etcd_asks_clients_and_members_for_certificates_of_an_authority_of_its_own() -> None:
    words = words_of("etcd-2", plan())
    assert "--client-cert-auth" in words and "--peer-client-cert-auth" in words
    for kind in ("", "peer-"):
        for option, file in (("cert-file", "tls.crt"), ("key-file", "tls.key"), ("trusted-ca-file", "ca.crt")):
            assert words[words.index(f"--{kind}{option}") + 1] == f"/data/c/security/etcd-2/{file}"
    meta = words_of("meta-1", plan())
    assert meta[meta.index("--etcd-ca") + 1] == "/data/c/security/etcd-client/ca.crt"
    assert meta[meta.index("--etcd-cert") + 1] == "/data/c/security/etcd-client/tls.crt"
    assert meta[meta.index("--etcd-key") + 1] == "/data/c/security/etcd-client/tls.key"


def test_parts_share_no_secret_with_which_one_could_act_as_another() -> None:
    """Neither a token of the cluster, nor the certificate of the operator: each has its own certificate."""
    made = plan()
    for part in made.parts:
        words = words_of(part.name, made)
        assert not [one for one in words if one.startswith("auth.token.file")], part.name
        named = {word.partition(f"{HERE}/security/")[2].split("/")[0] for word in words if f"{HERE}/security/" in word}
        assert named <= {part.name, "roles", *([ETCD_CLIENT] if part.role is Role.META else [])}, part.name


def test_a_cluster_whose_parts_shared_a_token_shares_none_from_its_next_start_on() -> None:
    made = plan()
    settings = {**made.choices.settings, "auth.token.file": "/data/c/security/token"}
    shared = replace(made, choices=replace(made.choices, settings=settings))
    known, _ = plan_of(cluster_text(shared, {}), options_text(shared.choices), where="here")
    assert secured(next_plan(known, Asked()), HERE) == made


def test_roles_of_the_user_take_the_place_of_the_one_that_is_made() -> None:
    own = first_plan(Asked(settings=("auth.role.tokens.file=/mine",), is_secure=True), has_etcd=True)
    words = words_of("node-1", secured(own, HERE))
    assert [one for one in words if one.startswith("auth.")] == ["auth.role.tokens.file=/mine"]


def test_a_cluster_of_an_earlier_version_keeps_plain_text_until_its_user_asks_for_tls() -> None:
    old = of_earlier_version(plan())
    text = options_text(old.choices)
    assert "tls" not in text.replace("ssl", "")  # an earlier version reads it, too
    known, _ = plan_of(cluster_text(old, {}), text, where="here")
    assert known == old
    kept = secured(next_plan(known, Asked()), HERE)
    for part in kept.parts:
        words = words_of(part.name, kept)
        assert not [one for one in words if "https://" in one or one.startswith(("http.", "security.inter"))], part.name
    assert "https" not in kept.context_options() and "--certificate-folder" not in kept.context_options()

    asked = secured(next_plan(known, Asked(is_secure=True)), HERE)
    for part in asked.parts:
        if part.role is not Role.ETCD:
            assert "http.security.protocol=SSL" in words_of(part.name, asked)
    assert "security.inter.broker.protocol=SSL" in words_of("node-1", asked)
    assert "--meta https://" in asked.context_options()
    # Members of etcd find each other by the addresses in their data.
    assert words_of("etcd-1", asked) == words_of("etcd-1", kept)
    assert "--etcd-ca" not in words_of("meta-1", asked)
    again, _ = plan_of(cluster_text(asked, {}), options_text(asked.choices), where="here")
    assert secured(next_plan(again, Asked()), HERE) == asked


def test_an_open_cluster_has_no_tls_at_all() -> None:
    made = first_plan(Asked(), has_etcd=True)
    for part in made.parts:
        assert not [one for one in words_of(part.name, made) if "https" in one or "SSL" in one or "cert" in one]


@pytest.mark.parametrize(
    "choices", [{"secure": False, "parts_have_tls": True}, {"parts_have_tls": False, "etcd_has_tls": True}]
)
def test_options_that_no_start_writes_are_refused(choices: dict[str, bool]) -> None:
    made = plan()
    options = json.loads(options_text(made.choices)) | choices
    with pytest.raises(InvalidRequest, match="TLS of etcd needs"):
        plan_of(cluster_text(made, {}), json.dumps(options), where="here")


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
    assert "--certificate-folder /elsewhere/security/operator" in moved.context_options()


def test_an_open_cluster_does_not_become_a_secure_one_by_a_later_start() -> None:
    with pytest.raises(Conflict, match="without --secure"):
        next_plan(first_plan(Asked(), has_etcd=True), Asked(is_secure=True))


@pytest.mark.parametrize("key", SECURE_SETTINGS)
def test_settings_whose_files_are_made_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="files of its own"):
        first_plan(Asked(settings=(f"{key}=x",), is_secure=True), has_etcd=True)


# Files ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path: Path) -> SecureFiles:
    files = SecureFiles(tmp_path)
    files.make(plan())
    return files


def test_only_the_owner_reads_what_is_made(files: SecureFiles) -> None:
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    secret = [
        files.folder / name
        for name in (
            "token",
            "roles",
            "admin.properties",
            "admin.conf",
            "authority/ca.key",
            "node-1/tls.key",
            "operator/tls.key",
        )
    ]
    assert {stat.S_IMODE(one.stat().st_mode) for one in secret} == {0o600}


def test_a_later_start_keeps_what_is_there(files: SecureFiles) -> None:
    before = {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()}
    files.make(plan())
    assert {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()} == before


def test_settings_of_clients_are_those_of_the_listener(files: SecureFiles) -> None:
    java = read_client_settings(files.client_file, {})
    librdkafka = read_client_settings(files.librdkafka_file, {})
    assert (java.protocol, java.mechanism, java.user) == (SecurityProtocol.SASL_SSL, "SCRAM-SHA-512", "admin")
    assert java.password == librdkafka.password and len(java.password) == 32
    assert java.authorities == librdkafka.authorities == str(files.folder / "authority" / "ca.crt")


def test_the_kcat_of_a_distribution_logs_in_by_what_its_file_says(files: SecureFiles, tmp_path: Path) -> None:
    """Its librdkafka repeats its own nonce in SCRAM, and is refused."""
    words = command_of(plan().part("node-1"), plan(), HERE, Programs(("stratalog",), ETCD))
    assert "sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN" in words
    assert read_client_settings(files.librdkafka_file, {}).mechanism == "PLAIN"
    scram = secured(
        first_plan(Asked(settings=("sasl.enabled.mechanisms=SCRAM-SHA-512",), is_secure=True), has_etcd=True), HERE
    )
    without_plain = SecureFiles(tmp_path / "without")
    without_plain.make(scram)
    assert read_client_settings(without_plain.librdkafka_file, {}).mechanism == "SCRAM-SHA-512"


def test_a_certificate_that_ends_soon_is_renewed(files: SecureFiles) -> None:
    let_end_soon(files)
    assert files.make(plan()) == ["node-1"]
    renewed = load_certificate((files.folder / "node-1" / "tls.crt").read_bytes())
    assert renewed.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)
    assert hosts_of(renewed) == ["127.0.0.1"]
    assert files.make(plan()) == []


def let_end_soon(files: SecureFiles) -> None:
    authority = read_authority(files.folder / "authority")
    ends_soon = authority.issue(node_holder(1, ["127.0.0.1"]), timedelta(days=3), datetime.now(UTC))
    write_holder(files.folder / "node-1", ends_soon, authority, is_replacing=True)


async def test_a_cluster_that_runs_renews_its_certificates_and_says_so(files: SecureFiles) -> None:
    let_end_soon(files)
    said: list[str] = []
    made = secured(plan(), files.folder.parent)
    starter = Starter(ClusterDirectory(files.folder.parent), made, Programs(("stratalog",), ETCD), {}, said.append)
    await starter.renew_certificates()
    assert said == [f"renewed certificates in {files.folder}: node-1"]
    (files.folder / "authority" / "ca.key").unlink()
    await starter.renew_certificates()
    assert len(said) == 2 and "certificates cannot be renewed: there is no authority" in said[1]


def test_each_part_has_a_certificate_that_names_it_and_no_other(files: SecureFiles) -> None:
    uris = {name: uris_of(certificate_of(files, name)) for name in ("node-1", "meta-1", "meta-3", "etcd-1", PAGE)}
    cluster = read_authority(files.folder / "authority").cluster_id
    assert uris["node-1"] == [f"stratalog://{cluster}/node/1"]
    assert uris["meta-1"] == uris["meta-3"] == [f"stratalog://{cluster}/meta"]
    assert uris["etcd-1"] == uris[PAGE] == []
    for name in uris:
        assert "127.0.0.1" in hosts_of(certificate_of(files, name))
    assert hosts_of(certificate_of(files, ETCD_CLIENT)) == []


def test_etcd_lets_no_certificate_of_a_node_or_a_client_in(files: SecureFiles) -> None:
    """Whoever reaches etcd can change all metadata, whatever the rules say."""
    trusted = (files.folder / "etcd-1" / "ca.crt").read_bytes()
    assert trusted == (files.folder / "etcd-authority" / "ca.crt").read_bytes()
    assert is_issued_by(certificate_of(files, ETCD_CLIENT), trusted)
    for name in ("node-1", "meta-1", PAGE):
        assert not is_issued_by(certificate_of(files, name), trusted)
    assert not is_issued_by(certificate_of(files, ETCD_CLIENT), (files.folder / "node-1" / "ca.crt").read_bytes())


def test_a_cluster_of_an_earlier_version_gets_no_files_that_it_does_not_use(tmp_path: Path) -> None:
    files, old = SecureFiles(tmp_path), of_earlier_version(plan(1))
    files.make(old)
    made = {one.name for one in files.folder.iterdir()}
    assert made == {"authority", "token", "admin.properties", "admin.conf", "admin.new", "node-1"}
    files.make(next_plan(old, Asked(is_secure=True)))
    added = {one.name for one in files.folder.iterdir()} - made
    assert added == {"meta-1", "meta-2", "meta-3", PAGE, "operator", "roles"}


def test_parts_know_the_token_of_the_ui_as_the_hash_of_a_viewers(files: SecureFiles) -> None:
    token = (files.folder / "token").read_text().strip()
    text = (files.folder / "roles").read_text()
    (known,) = parse_named_tokens(text, "here")
    assert (known.name, known.role, known.digest) == ("ui", TokenRole.VIEWER, digest_of(token.encode()))
    assert token not in text
    (files.folder / "token").write_text("another-token-of-the-ui\n")
    files.make(plan())
    (known,) = parse_named_tokens((files.folder / "roles").read_text(), "here")
    assert known.digest == digest_of(b"another-token-of-the-ui")


def test_the_token_of_the_ui_reads_records_there(files: SecureFiles) -> None:
    (known,) = page_tokens(TokenFile(files.token_file))
    assert (known.name, known.role) == ("ui", TokenRole.OPERATOR)


def test_commands_show_the_certificate_of_the_operator(files: SecureFiles) -> None:
    made = secured(plan(), files.folder.parent)
    access = parts_access(made, files.folder.parent)
    assert access.token is None and access.tls is not None
    shown = certificate_of(files, "operator")
    assert uris_of(shown) == [f"stratalog://{read_authority(files.folder / 'authority').cluster_id}/operator"]
    assert hosts_of(shown) == [], "no client takes it for a server"


def certificate_of(files: SecureFiles, name: str) -> Certificate:
    return load_certificate((files.folder / name / "tls.crt").read_bytes())


async def test_the_admin_is_created_once_and_not_again_after_somebody_deleted_it(files: SecureFiles) -> None:
    service = MetaService(MemoryStore(), HandClock(), lease_ms=60_000)
    await service.start()
    server = MetaServer(service)
    url = await server.start("127.0.0.1", 0)
    try:
        await files.create_admin(url, None, None)
        (kept,) = (await service.snapshot()).credentials
        password = read_client_settings(files.client_file, {}).password
        assert kept.user == "admin" and is_password(ScramMechanism.SCRAM_SHA_512, kept.credential, password)
        await files.create_admin(url, None, None)
        assert (await service.snapshot()).credentials == (kept,)
        assert not list(files.folder.glob("*.new"))
    finally:
        await server.close()
        await service.close()
