"""The pipeline asks a meta service over TLS, with the token: by options, the environment or the context."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("pyspark", reason=NO_PIPELINE)

import pytest_asyncio
from typer.testing import CliRunner, Result

from stratalog.connect.http_login import HttpLogin
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.errors import InvalidRequest, Unauthorized, Unavailable
from stratalog.model.metadata import NodeInfo
from stratalog.objects import open_store
from stratalog.settings.choices import ClientAuth
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_tls import PortTls
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.subjects import member_of
from stratalog_cli.entry import build_app
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.planning import meta_place
from support.certificates import Authority
from support.meta_worlds import HandClock

TOKEN = "the-token-of-the-cluster"


@dataclass
class ClosedMeta:
    """A meta service that speaks TLS and asks for the token, with files for its clients."""

    url: str
    login: HttpLogin
    bucket: str

    async def catalog(self, login: HttpLogin | None) -> Catalog:
        store = open_store(self.bucket)
        try:
            return await Catalog.open(store, cluster_id=None, meta_url=self.url, meta_login=login)
        finally:
            await store.close()

    async def run(self, *words: str, **environment: str | None) -> Result:
        command = ["pipeline", *words, "--bucket", self.bucket, "--meta", self.url, "--threads", "0"]
        none = {"STRATALOG_TOKEN_FILE": None, "STRATALOG_CERTIFICATE_FOLDER": None, "XDG_CONFIG_HOME": "/nowhere"}
        app = build_app(("pipeline",))
        return await asyncio.to_thread(CliRunner().invoke, app, command, env=none | environment)


@pytest_asyncio.fixture
async def meta(tmp_path: Path) -> AsyncIterator[ClosedMeta]:
    authority = Authority()
    folder = authority.issue_member("meta").write_folder(tmp_path / "meta", authority.certificate)
    rules = TlsRules(ClientAuth.REQUESTED, asked_by="http.ssl.client.auth")
    identity = TlsIdentity(TlsFiles(str(folder)), rules)
    tls = PortTls(lambda: identity.streaming(rules), lambda: identity.member, member_of)
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    await service.perform(RegisterNode(NodeInfo(1, "disk-1", "127.0.0.1", 9092)))
    await service.perform(CreateTopic("flights", 1, 1, {}))
    server = MetaServer(service, heartbeat_s=0.05, access=HttpAccess(lambda: (TOKEN,)), tls=tls)
    url = await server.start("127.0.0.1", 0)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted" / "ca.crt").write_bytes(authority.certificate)
    login = HttpLogin(str(tmp_path / "token"), str(tmp_path / "trusted"))
    yield ClosedMeta(url, login, str(tmp_path / "bucket"))
    await server.close()
    await service.close()


async def test_a_catalog_asks_over_tls_with_the_token(meta: ClosedMeta) -> None:
    assert [one.topic for one in await (await meta.catalog(meta.login)).shards(None)] == ["flights"]


async def test_without_the_token_or_the_authority_it_is_refused(meta: ClosedMeta) -> None:
    with pytest.raises(Unauthorized):
        await meta.catalog(HttpLogin(certificate_folder=meta.login.certificate_folder))
    with pytest.raises(Unavailable, match="no authority that this process trusts"):
        await meta.catalog(HttpLogin(token_file=meta.login.token_file))


async def test_a_caller_that_names_no_login_goes_by_the_environment(
    meta: ClosedMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATALOG_TOKEN_FILE", meta.login.token_file)
    monkeypatch.setenv("STRATALOG_CERTIFICATE_FOLDER", meta.login.certificate_folder)
    assert await (await meta.catalog(None)).shards(["flights"])


@pytest.mark.parametrize("job", [("verify",), ("compact",)])
async def test_a_job_logs_in_as_commands_do_and_says_in_a_sentence_where_it_cannot(
    meta: ClosedMeta, job: tuple[str, ...], tmp_path: Path
) -> None:
    trusted = {"STRATALOG_CERTIFICATE_FOLDER": meta.login.certificate_folder}
    done = await meta.run(*job, **trusted, STRATALOG_TOKEN_FILE=meta.login.token_file)
    assert done.exit_code == 0, done.output
    refused = await meta.run(*job, **trusted)
    assert refused.exit_code != 0 and "Traceback" not in refused.output
    assert refused.stderr.count("\n") == 1 and "token" in refused.stderr
    assert TOKEN not in refused.output
    # The context of this address has both files, too.
    files = {"token_file": meta.login.token_file, "certificate_folder": meta.login.certificate_folder}
    context = {"current": "prod", "contexts": {"prod": {"meta": meta.url} | files}}
    (tmp_path / "stratalog").mkdir()
    (tmp_path / "stratalog" / "contexts.json").write_text(json.dumps(context))
    by_context = await meta.run(*job, XDG_CONFIG_HOME=str(tmp_path))
    assert by_context.exit_code == 0, by_context.output


# Options of Spark's reader --------------------------------------------------------------------------------------------
def place(tmp_path: Path, environment: dict[str, str], **options: str) -> tuple[str | None, HttpLogin]:
    if not (tmp_path / "stratalog").exists():
        (tmp_path / "stratalog").mkdir()
        known = {"prod": {"meta": "https://a:1,https://b:1"}, "bare": {"admin": "a:1"}}
        known["prod"] |= {"token_file": "/of/context", "certificate_folder": "/trusted/by/context"}
        (tmp_path / "stratalog" / "contexts.json").write_text(json.dumps({"current": "prod", "contexts": known}))
    given = parse_options({"bucket": "/bucket"} | options, Mode.BATCH)
    return meta_place(given, {"XDG_CONFIG_HOME": str(tmp_path)} | environment)


def test_a_reader_asks_the_meta_service_of_its_context_with_its_login(tmp_path: Path) -> None:
    login = HttpLogin("/of/context", "/trusted/by/context")
    assert place(tmp_path, {}, context="prod") == ("https://a:1,https://b:1", login)
    assert place(tmp_path, {}, meta="https://b:1") == ("https://b:1", login)


def test_a_reader_sends_the_token_of_a_context_to_no_other_address(tmp_path: Path) -> None:
    assert place(tmp_path, {}, meta="https://other:1") == ("https://other:1", HttpLogin())
    assert place(tmp_path, {}) == (None, HttpLogin()), "a context in use does not change what is read"
    with pytest.raises(InvalidRequest, match="not sent to others"):
        place(tmp_path, {}, meta="https://other:1", context="prod")
    with pytest.raises(InvalidRequest, match="names no meta address"):
        place(tmp_path, {}, context="bare")


def test_a_reader_s_options_go_before_the_environment_and_that_before_the_context(tmp_path: Path) -> None:
    environment = {"STRATALOG_TOKEN_FILE": "/of/environment", "STRATALOG_CERTIFICATE_FOLDER": "/certificates"}
    assert place(tmp_path, environment, context="prod")[1] == HttpLogin("/of/environment", "/certificates")
    options = {"context": "prod", "tokenFile": "/of/option", "certificateFolder": "/other"}
    assert place(tmp_path, environment, **options)[1] == HttpLogin("/of/option", "/other")


def test_a_snapshot_is_read_without_a_meta_service(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="snapshot and context exclude each other"):
        place(tmp_path, {}, context="prod", snapshot="s")
