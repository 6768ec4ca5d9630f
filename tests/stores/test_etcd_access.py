"""An etcd with authentication: TLS with a certificate on both sides, which are renewed, users with passwords. No secret
is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AcquireLock
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.access import PASSWORD_VARIABLE, AccessFiles, EtcdAccess, read_access
from stratalog_meta.stores.etcd.client import EtcdClient
from stratalog_meta.stores.etcd.renewal import identity_of, take_renewed
from stratalog_meta.stores.etcd.store import COMPACTED_BY_ROOT
from support.certificates import DAY, Authority, Certificates, make_certificates
from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.etcd_stores import QUICK, leading
from support.meta_process import MetaProcess
from support.waiting import eventually

pytestmark = [pytest.mark.real_etcd, pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)]
SECRET = "not-to-be-seen"
PATIENT = replace(QUICK, attempt_s=5.0, longest_attempt_s=5.0)
"""A busy machine fails no attempt."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[EtcdServers]:
    with etcd_servers(tmp_path_factory.mktemp("etcd"), 1, tls=certificates) as servers:
        servers.want_users("meta", SECRET, "/mine/")
        yield servers


def files(certificates: Certificates, password: Path | None = None) -> AccessFiles:
    return AccessFiles("meta", password, certificates.ca, certificates.client, certificates.client_key)


def access(certificates: Certificates, password: str = SECRET) -> EtcdAccess:
    return read_access(files(certificates), {PASSWORD_VARIABLE: password})


def test_what_goes_together_is_asked_for_and_no_secret_is_shown(certificates: Certificates, tmp_path: Path) -> None:
    told = access(certificates)
    assert SECRET not in repr(told) and "PRIVATE KEY" not in repr(told)
    line = tmp_path / "password"
    line.write_text(f"{SECRET}\n")
    assert read_access(files(certificates, line), {}).password == SECRET
    with pytest.raises(InvalidRequest, match="user and password go together"):
        read_access(AccessFiles(user="meta"), {})
    with pytest.raises(InvalidRequest, match="user and password go together") as refused:
        read_access(AccessFiles(), {PASSWORD_VARIABLE: SECRET})
    assert SECRET not in str(refused.value)
    with pytest.raises(InvalidRequest, match="--etcd-key"):
        read_access(AccessFiles(ca=certificates.ca, certificate=certificates.client), {})
    with pytest.raises(InvalidRequest, match="name --etcd-ca"):
        read_access(AccessFiles(certificate=certificates.client, key=certificates.client_key), {})
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_access(AccessFiles(ca=tmp_path / "nowhere.pem"), {})
    with pytest.raises(InvalidRequest, match="no PEM block"):
        read_access(AccessFiles(ca=line), {})


@pytest.mark.fault("etcd-requires-users-certificates")
async def test_a_store_is_led_written_and_read_as_a_user_over_tls(
    guarded: EtcdServers, certificates: Certificates
) -> None:
    client = EtcdClient(guarded.endpoints, policy=PATIENT, access=access(certificates))
    async with leading(guarded.endpoints, b"/mine/", client=client) as (_client, leadership, store):
        await store.write([[]])
        guarded.forget_tokens()
        await store.write([[]])
        await client.range(rpc.RangeRequest(key=b"/mine/head/turn"))
        assert leadership.is_leading and client.stats.attempts_failed == 0, "a token that is old costs no attempt"


@pytest.mark.fault("etcd-users-lets-root")
async def test_a_user_that_may_not_compact_leads_on_and_the_log_says_what_etcd_needs(
    guarded: EtcdServers, certificates: Certificates
) -> None:
    """etcd 3.6.16 lets only root compact; 3.5.1 let every user."""
    client = EtcdClient(guarded.endpoints, policy=PATIENT, access=access(certificates))
    async with leading(guarded.endpoints, b"/mine/", client=client, compact_every_s=0.05) as (_, leadership, store):
        with capture_logs() as lines:

            async def is_said() -> bool:
                await store.write([[]])
                return any(line.get("error") == COMPACTED_BY_ROOT for line in lines)

            await eventually(is_said, timeout=30)
        assert leadership.is_leading and client.stats.compactions == 0


@pytest.mark.fault("etcd-requires-users-certificates")
async def test_a_client_without_permission_learns_why_at_once(guarded: EtcdServers, certificates: Certificates) -> None:
    request = rpc.RangeRequest(key=b"/mine/x")
    for wrong, key, words in (
        (access(certificates, "guessed"), b"/mine/x", "no such user, or another password"),
        (access(certificates), b"/theirs/x", "may not use this prefix"),
    ):
        client = EtcdClient(guarded.endpoints, policy=QUICK, access=wrong)
        with pytest.raises(Unavailable, match=words) as refused:
            await client.range(rpc.RangeRequest(key=key))
        assert "guessed" not in str(refused.value) and SECRET not in str(refused.value)
        await client.close()
    for stranger in (EtcdAccess(), EtcdAccess(ca=certificates.ca.read_bytes())):
        client = EtcdClient(guarded.endpoints, policy=QUICK, access=stranger)
        with pytest.raises(Unavailable):
            await client.range(request)
        await client.close()


@pytest.mark.fault("etcd-requires-users-certificates")
async def test_an_instance_takes_its_secrets_from_the_environment_and_logs_none(
    guarded: EtcdServers, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATALOG_ETCD_USER", "meta")
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    for name, path in (("CA", certificates.ca), ("CERT", certificates.client), ("KEY", certificates.client_key)):
        monkeypatch.setenv(f"STRATALOG_ETCD_{name}", str(path))
    meta = MetaProcess(tmp_path, "meta", "--store", f"{guarded.url}/mine").start()
    # It is ready before it leads: with TLS and users on a busy machine the election may take seconds.
    client = HttpMetaClient(meta.url, RetryPolicy(attempts=400, longest_pause_s=0.1))
    try:
        assert (await client.perform(AcquireLock("a lock", "somebody", 1_000))).epoch == 1
    finally:
        await client.close()
        meta.stop()
    assert SECRET not in meta.log()


# Renewal ------------------------------------------------------------------------------------------------------------
def issue(authority: Authority, folder: Path, trusted: bytes) -> Certificates:
    """Over those that are there."""
    folder.mkdir(exist_ok=True)
    made = Certificates(*(folder / part for part in ("ca", "server", "server-key", "client", "client-key")))
    made.ca.write_bytes(trusted)
    for certificate, key in ((made.server, made.server_key), (made.client, made.client_key)):
        issued = authority.issue(certificate.name)
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
    return made


@pytest.mark.fault("certificate-replaced-cluster-runs")
async def test_certificates_and_their_authority_are_replaced_while_an_instance_leads(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    own = issue(old, tmp_path / "own", old.certificate)
    of_etcd = issue(old, tmp_path / "etcd", old.certificate)
    found = AccessFiles(ca=own.ca, certificate=own.client, key=own.client_key)
    with etcd_servers(tmp_path / "data", 1, tls=of_etcd) as servers:
        identity = identity_of(found)
        client = EtcdClient(servers.endpoints, policy=PATIENT, access=read_access(found, {}))
        take_renewed(identity, client)
        assert identity.material.chain == own.client.read_bytes()
        async with leading(servers.endpoints, b"/mine/", client=client, lease_s=12) as (_, leadership, store):
            await store.write([[]])
            own.client_key.write_bytes(b"no key")
            identity.refresh()
            take_renewed(identity, client)
            assert identity.stats.is_rejected == 1
            await store.write([[]])
            issue(new, tmp_path / "own", new.certificate)
            issue(new, tmp_path / "etcd", new.certificate)
            servers.kill(0)
            servers.start(0)  # from now on it trusts the new authority alone
            identity.refresh()
            take_renewed(identity, client)
            assert (identity.stats.is_rejected, identity.stats.reloads) == (0, 1)
            await store.write([[]])
            keeper = leadership._keeper
            assert keeper is not None
            until = keeper.until
            await eventually(lambda: keeper.until > until, timeout=30)
            assert leadership.is_leading, "the lease is renewed with the new certificate"


def test_a_certificate_for_etcd_that_has_expired_is_named_at_the_start(tmp_path: Path) -> None:
    authority = Authority()
    own = issue(authority, tmp_path / "own", authority.certificate)
    expired = authority.issue("meta", begins=-2 * DAY, ends=-DAY)
    own.client.write_bytes(expired.certificate)
    own.client_key.write_bytes(expired.key)
    with pytest.raises(InvalidRequest, match=r"the certificate of CN=meta expired at .*--etcd-cert"):
        identity_of(AccessFiles(ca=own.ca, certificate=own.client, key=own.client_key))
