"""`stratalog certs`: files for servers and clients, keys for their owner alone, nothing overwritten."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner, Result

from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog_cli.entry import build_app

APP = build_app(("certs",))
CLUSTER = "my-cluster"


def certs(*words: object) -> Result:
    return CliRunner().invoke(APP, ["certs", *map(str, words)])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    folder = tmp_path / "authority"
    assert certs("create-authority", folder, "--cluster", CLUSTER).exit_code == 0
    return folder


def issued(authority: Path, out: Path, *words: object) -> Path:
    ran = certs("issue", "--authority", authority, "--out", out, *words)
    assert ran.exit_code == 0, ran.output
    return out


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).serial_number


def test_a_node_uses_the_folder_as_it_is(authority: Path, tmp_path: Path) -> None:
    folder = issued(authority, tmp_path / "node-1", "--node", 1, "--host", "localhost", "--host", "127.0.0.1")
    assert TlsIdentity(TlsFiles(str(folder)), TlsRules()).stats.expires_ms > 0
    names = json.loads(certs("show", folder, "--output", "json").stdout)[0]["names"]
    assert names == ["localhost", "127.0.0.1", f"stratalog://{CLUSTER}/node/1"]


def test_keys_are_for_their_owner_alone(authority: Path, tmp_path: Path) -> None:
    folder = issued(authority, tmp_path / "client", "--client", "alice")
    assert mode(authority) == 0o700
    assert mode(authority / "ca.key") == mode(folder / "tls.key") == 0o600
    assert mode(folder / "tls.crt") == mode(folder / "ca.crt") == 0o644
    assert {path.name for path in folder.iterdir()} == {"tls.crt", "tls.key", "ca.crt"}


def test_no_authority_is_ever_overwritten(authority: Path) -> None:
    before = (authority / "ca.key").read_bytes()
    again = certs("create-authority", authority)
    assert again.exit_code == 2 and "is there already" in again.stderr
    assert (authority / "ca.key").read_bytes() == before


def test_a_certificate_is_overwritten_only_where_that_is_said(authority: Path, tmp_path: Path) -> None:
    folder = issued(authority, tmp_path / "node", "--node", 1, "--host", "localhost")
    before = serial(folder)
    again = certs("issue", "--authority", authority, "--out", folder, "--node", 1, "--host", "other")
    assert again.exit_code == 2 and "--replace" in again.stderr and serial(folder) == before
    issued(authority, folder, "--node", 1, "--host", "other", "--replace")
    assert serial(folder) != before and mode(folder / "tls.key") == 0o600


def test_the_directory_of_an_authority_gets_no_other_certificate(authority: Path) -> None:
    for more in ((), ("--replace",)):
        ran = certs("issue", "--authority", authority, "--out", authority, "--client", "alice", *more)
        assert ran.exit_code == 2 and not (authority / "tls.key").exists()


def test_a_key_that_is_a_link_is_not_followed(authority: Path, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "node", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("precious")
    (folder / "tls.key").symlink_to(elsewhere)
    ran = certs("issue", "--authority", authority, "--out", folder, "--client", "alice", "--replace")
    assert ran.exit_code == 0 and elsewhere.read_text() == "precious"
    assert not (folder / "tls.key").is_symlink()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "say whom it is for"),
        (("--node", "1", "--meta", "--host", "a"), "say whom it is for"),
        (("--node", "1"), "give --host"),
        (("--meta",), "give --host"),
        (("--client", "alice", "--host", "a"), "--host is for servers"),
        (("--node", "1", "--host", "a:9092"), "without a port"),
        (("--client", "alice", "--valid", "soon"), "--valid"),
        (("--client", "alice", "--valid", "200000d"), "--valid"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_file_is_made(
    authority: Path, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    ran = certs("issue", "--authority", authority, "--out", tmp_path / "out", *words)
    assert ran.exit_code == 2 and why in ran.stderr, ran.output
    assert not (tmp_path / "out").exists()


def test_a_missing_authority_is_named_with_the_command_that_creates_one(tmp_path: Path) -> None:
    ran = certs("issue", "--authority", tmp_path, "--out", tmp_path / "out", "--client", "alice")
    assert ran.exit_code == 2 and f"stratalog certs create-authority {tmp_path}" in ran.stderr


def test_only_certificates_that_expire_soon_are_renewed(authority: Path, tmp_path: Path) -> None:
    soon = issued(authority, tmp_path / "soon", "--node", 1, "--host", "localhost", "--valid", "5d")
    later = issued(authority, tmp_path / "later", "--node", 2, "--host", "localhost")
    before = serial(soon), serial(later)
    identity = TlsIdentity(TlsFiles(str(soon)), TlsRules())

    ran = certs("renew", soon, later, "--authority", authority)
    assert ran.exit_code == 0 and "left as it is" in ran.stdout
    assert serial(soon) != before[0] and serial(later) == before[1]

    identity.refresh()  # as a running process does
    assert (identity.stats.reloads, identity.stats.rejected) == (1, 0)
    assert mode(soon / "tls.key") == 0o600


def test_a_renewed_key_is_readable_by_whom_the_earlier_one_was(authority: Path, tmp_path: Path) -> None:
    """Cron renews as root, and the node runs as another user."""
    folder = issued(authority, tmp_path / "node", "--node", 1, "--host", "localhost", "--valid", "5d")
    key = folder / "tls.key"
    key.chmod(0o644)
    if os.getuid() == 0:
        os.chown(key, 4_321, 5_432)
    before = key.stat()
    assert certs("renew", folder, "--authority", authority).exit_code == 0
    after = key.stat()
    assert after.st_ino != before.st_ino and (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert mode(key) == 0o640, "but never by everybody"
    issued(authority, folder, "--client", "alice", "--replace")
    assert mode(key) == 0o600 and key.stat().st_uid == os.getuid(), "another certificate is for whoever issues it"


def test_a_certificate_of_another_authority_is_not_renewed(authority: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert certs("create-authority", other).exit_code == 0
    folder = issued(other, tmp_path / "node", "--node", 1, "--host", "localhost", "--valid", "1d")
    ran = certs("renew", folder, "--authority", authority)
    assert ran.exit_code == 2 and f"{folder}/tls.crt: another authority" in ran.stderr


def test_a_table_shows_what_is_wrong_and_the_exit_code_says_so(authority: Path, tmp_path: Path) -> None:
    good = issued(authority, tmp_path / "good", "--client", "alice")
    bad = issued(authority, tmp_path / "bad", "--client", "bob")
    assert certs("show", authority, good).exit_code == 0
    (bad / "tls.key").write_bytes((good / "tls.key").read_bytes())
    ran = certs("show", good, bad)
    assert ran.exit_code == 1
    assert [line.split()[1] for line in ran.stdout.splitlines()[2:4]] == ["CN=alice", "CN=bob"]
    assert "tls.key is not its key" in ran.stdout and "PRIVATE" not in ran.stdout


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.write_text("nothing")
    ran = certs("show", file)
    assert ran.exit_code == 2 and f"{file}: no certificate can be read" in ran.stderr
