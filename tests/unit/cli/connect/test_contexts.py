"""Contexts: where commands go, and that a write goes only to a named cluster."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stratalog.connect.contexts import Context, Contexts, contexts_file, read_contexts, write_contexts
from stratalog.model.errors import AlreadyExists, InvalidRequest, NotFound
from stratalog_cli.connect import target_address
from stratalog_cli.entry import build_app
from support.certificates import Authority
from support.cluster_ports import free_port
from support.node_process import NodeProcess

APP = build_app()
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {"offsets.topic.num.partitions": 1, "meta.listen": f"127.0.0.1:{free_port()}"}
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", None, settings) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


class QuietServer(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print no traceback to the stderr of a command under test when a client goes away."""


@pytest.fixture
def web_server() -> Iterator[str]:
    """It waits for the end of a line, and serves one client at a time."""
    server = QuietServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class User:
    """A user with a configuration file."""

    def __init__(self, home: Path) -> None:
        self.environment = {"XDG_CONFIG_HOME": str(home)}
        self.file = contexts_file(self.environment)

    def run(self, *words: str, **environment: str) -> Result:
        cleared = dict.fromkeys(("STRATALOG_ADMIN", "STRATALOG_CONTEXT", "STRATALOG_META", "STRATALOG_TOKEN_FILE"))
        env = {**cleared, **self.environment, **environment}
        return CliRunner().invoke(APP, list(words), env=env)


def cluster_of(node: NodeProcess) -> str:
    return str(json.loads(node.get("/v1/status"))["cluster_id"])


def test_commands_go_where_the_context_says_and_writes_name_node_and_cluster(user: User, node: NodeProcess) -> None:
    added = user.run("context", "add", "here", "--admin", node.admin, "--bootstrap", node.bootstrap)
    assert added.exit_code == 0 and cluster_of(node) in added.stdout, added.output

    other = user.run("context", "add", "away", "--admin", NOWHERE)
    assert other.exit_code == 0 and "warning: no node answers at" in other.stderr
    assert "context away is kept, without the id of its cluster: no address answers now; `stratal" in other.stdout

    made = user.run("topics", "create", "by-context")
    assert made.exit_code == 0, made.output
    assert f"of cluster {cluster_of(node)} at {node.admin} (context here)" in made.stderr
    listed = user.run("topics", "list")
    assert "by-context" in listed.stdout and not listed.stderr


def test_an_option_goes_before_the_environment_and_that_before_the_context(user: User, node: NodeProcess) -> None:
    user.run("context", "add", "nowhere", "--admin", NOWHERE)
    user.run("context", "add", "here", "--admin", node.admin)

    assert user.run("topics", "list").exit_code == 3
    assert user.run("topics", "list", STRATALOG_CONTEXT="here").exit_code == 0
    assert user.run("topics", "list", STRATALOG_ADMIN=node.admin).exit_code == 0
    assert user.run("--context", "here", "topics", "list", STRATALOG_ADMIN=NOWHERE).exit_code == 0
    assert user.run("topics", "list", "--admin", node.admin, STRATALOG_CONTEXT="nowhere").exit_code == 0
    user.run("context", "use", "here")
    assert user.run("topics", "list").exit_code == 0


def test_a_write_that_no_one_pointed_goes_nowhere_and_a_question_says_whom_it_asked(
    user: User, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_address, "DEFAULT_ADDRESS", node.admin)  # another process may have the default port here

    refused = user.run("topics", "create", "unpointed")
    assert refused.exit_code == 2 and cluster_of(node) in refused.stderr
    assert f"stratalog context add NAME --admin {node.admin}" in refused.stderr
    assert user.run("seal", "by-context").exit_code == user.run("topics", "delete", "by-context", "-y").exit_code == 2

    asked = user.run("topics", "list", "--output", "json")
    assert asked.exit_code == 0 and f"at {node.admin}" in asked.stderr and cluster_of(node) in asked.stderr
    assert "unpointed" not in [topic["name"] for topic in json.loads(asked.stdout)]
    assert user.run("topics", "create", "unpointed", "--dry-run").exit_code == 0


def test_a_write_is_refused_where_another_cluster_answers_than_the_contexts(user: User, node: NodeProcess) -> None:
    user.run("context", "add", "moved", "--admin", node.admin, "--cluster", "another")

    refused = user.run("topics", "create", "elsewhere")
    assert refused.exit_code == 2 and "context moved is of cluster another" in refused.stderr
    assert "elsewhere" not in user.run("topics", "list").stdout
    assert user.run("context", "add", "moved", "--admin", node.admin).exit_code == 0  # the same again: looked up again
    assert user.run("topics", "create", "elsewhere").exit_code == 0


def test_a_context_that_is_not_there_is_refused_with_those_that_are(user: User) -> None:
    user.run("context", "add", "prod", "--admin", NOWHERE)

    for ran in (
        user.run("--context", "prud", "topics", "list"),
        user.run("topics", "list", STRATALOG_CONTEXT="prud"),
        user.run("context", "use", "prud"),
        user.run("context", "show", "prud"),
        user.run("context", "remove", "prud"),
    ):
        assert ran.exit_code == 2 and "there are: prod" in ran.stderr, ran.output


def test_a_context_without_a_meta_service_is_reported_as_such(user: User) -> None:
    assert "nothing names the meta service" in user.run("nodes", "list").stderr
    user.run("context", "add", "prod", "--admin", NOWHERE)

    ran = user.run("nodes", "list")
    assert ran.exit_code == 2 and "context prod names no --meta" in ran.stderr
    assert "only if meta.listen is set" in ran.stderr, "a single node has no such address by itself"
    assert "`stratalog status` shows such a node" in ran.stderr


def test_the_file_is_its_owners_and_holds_no_token(user: User, tmp_path: Path) -> None:
    secret = "s" * 40
    token = tmp_path / "token"
    token.write_text(secret)
    user.run("context", "add", "prod", "--admin", NOWHERE, "--token-file", str(token))

    assert stat.S_IMODE(user.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(user.file.parent.stat().st_mode) == 0o700
    text = user.file.read_text()
    assert str(token) in text and secret not in text
    assert [file.name for file in user.file.parent.iterdir()] == [user.file.name]


def test_a_contexts_token_is_shown_to_its_addresses_alone(user: User, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 40)
    user.run("context", "add", "prod", "--admin", NOWHERE, "--token-file", str(token))
    os.environ["XDG_CONFIG_HOME"], before = str(tmp_path), os.environ.get("XDG_CONFIG_HOME")
    try:
        by_context, by_option = (
            target_address.admin_target(None).token,
            target_address.admin_target("127.0.0.1:2").token,
        )
    finally:
        if before is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = before
    assert by_context is not None and by_context() == "t" * 40
    assert by_option is None


def test_a_contexts_authority_is_trusted_at_its_addresses_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "of-context", tmp_path / "of-environment"]
    for folder in folders:
        folder.mkdir()
        (folder / "ca.crt").write_bytes(Authority(folder.name).certificate)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STRATALOG_CERTIFICATE_FOLDER", raising=False)
    context = Context("prod", "https://h:1", "https://h:2", certificate_folder=str(folders[0]))
    write_contexts(contexts_file(os.environ), Contexts({"prod": context}, "prod"))

    assert trusted_by(target_address.admin_target(None)) == trusted_by(target_address.meta_target(None)) == "of-context"
    assert trusted_by(target_address.admin_target("https://h:1")) == "of-context", "an option that names one of them"
    assert trusted_by(target_address.meta_target("https://h:2")) == "of-context"
    assert target_address.admin_target("https://h:2").tls is target_address.meta_target("https://h:1").tls is None
    assert target_address.meta_target("https://h:2,https://h:3").tls is None
    monkeypatch.setenv("STRATALOG_CERTIFICATE_FOLDER", str(folders[1]))
    assert trusted_by(target_address.admin_target(None)) == "of-environment"

    monkeypatch.delenv("STRATALOG_CERTIFICATE_FOLDER")
    (folders[0] / "ca.crt").unlink()
    with pytest.raises(InvalidRequest, match=r"the certificate folder \(context prod\)"):
        _ = target_address.admin_target(None).tls


def trusted_by(target: target_address.Target) -> str:
    assert target.tls is not None
    (authority,) = target.tls().get_ca_certs()
    return str(dict(pair for (pair,) in authority["subject"])["commonName"])  # type: ignore[misc]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"contexts": {"a": {"admin": 5}}}', '{"contexts": {"a": {"b": ""}}}']
)
def test_a_file_that_cannot_be_read_is_an_error_never_no_context(user: User, text: str) -> None:
    user.file.parent.mkdir(parents=True)
    user.file.write_text(text)

    for words in (("topics", "list"), ("topics", "create", "t"), ("context", "list")):
        ran = user.run(*words)
        assert ran.exit_code == 2 and str(user.file) in ran.stderr


def test_contexts_are_listed_shown_and_removed(user: User) -> None:
    assert "no contexts yet" in user.run("context", "list").stdout
    assert "context add NAME" in user.run("context", "show").stderr, "there is none to use"
    user.run("context", "add", "a", "--meta", "http://127.0.0.1:1")
    user.run("context", "add", "b", "--bootstrap", "127.0.0.1:1")

    listed = json.loads(user.run("context", "list", "-o", "json").stdout)
    assert [(one["name"], one["is_used"]) for one in listed] == [("a", True), ("b", False)]
    assert "http://127.0.0.1:1" in user.run("context", "show").stdout
    assert user.run("context", "remove", "a").exit_code == 0
    assert user.run("context", "show").exit_code == 2
    assert "STRATALOG_CONTEXT" in user.run("context", "show", STRATALOG_CONTEXT="b").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("a",),
        ("a b", "--admin", NOWHERE),
        ("../a", "--admin", NOWHERE),
        ("a", "--admin", "localhost"),
        ("a", "--bootstrap", "localhost"),
        ("a", "--meta", "localhost:9100"),
    ],
)
def test_what_is_no_context_is_refused_and_nothing_is_made(user: User, words: tuple[str, ...]) -> None:
    assert user.run("context", "add", *words).exit_code == 2
    assert not user.file.exists()


def test_other_addresses_under_a_known_name_want_replace() -> None:
    known = Contexts({}).with_added(Context("a", admin="h:1", cluster="c"), is_replacing=False)
    with pytest.raises(AlreadyExists, match="--replace"):
        known.with_added(Context("a", admin="h:2"), is_replacing=False)
    assert known.with_added(Context("a", admin="h:2"), is_replacing=True).named("a").admin == "h:2"
    assert known.current == "a"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = contexts_file({"HOME": str(tmp_path)})
    assert file == tmp_path / ".config" / "stratalog" / "contexts.json"
    contexts = Contexts({"a": Context("a", "h:1", "http://h:2", "h:3", "/t", "c"), "b": Context("b", meta="m")}, "b")

    write_contexts(file, contexts)

    assert read_contexts(file) == contexts
    assert contexts.without("b").chosen({}) is None
    with pytest.raises(NotFound):
        contexts.chosen({"STRATALOG_CONTEXT": "c"})


def test_a_relative_configuration_folder_is_passed_over(tmp_path: Path) -> None:
    assert contexts_file({"XDG_CONFIG_HOME": "here", "HOME": str(tmp_path)}).is_relative_to(tmp_path)


def test_a_usual_address_where_nothing_listens_is_reported_as_one_that_no_option_named(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(target_address, "DEFAULT_ADDRESS", address)

    ran = user.run("topics", "create", "t")
    assert ran.exit_code == 3 and address in ran.stderr and "--admin" in ran.stderr


def test_nothing_is_usual_for_the_meta_service() -> None:
    with pytest.raises(InvalidRequest, match="STRATALOG_META"):
        target_address.meta_target(None)


def test_a_server_that_is_no_node_is_refused_and_kept_only_with_the_id_of_the_cluster(
    user: User, node: NodeProcess
) -> None:
    ran = user.run("context", "add", "swapped", "--admin", node.bootstrap)
    assert ran.exit_code == 3 and "as a Kafka listener does, too" in ran.stderr and "is not kept" in ran.stderr
    ran = user.run("context", "add", "swapped", "--meta", f"http://{node.admin}")
    assert ran.exit_code == 3 and f"what answers at http://{node.admin} is not a meta service" in ran.stderr
    ran = user.run("context", "add", "swapped", "--admin", node.settings["meta.listen"])
    assert ran.exit_code == 3 and "is not the admin port of a storage node" in ran.stderr
    assert not user.file.exists()

    kept = user.run("context", "add", "swapped", "--admin", node.bootstrap, "--cluster", "c")
    assert kept.exit_code == 0 and not kept.stderr


@pytest.mark.fault("address-another-server")
def test_a_bootstrap_address_that_is_no_kafka_listener_is_refused_and_one_where_nothing_listens_is_kept(
    user: User, node: NodeProcess, web_server: str
) -> None:
    for address in (node.admin, node.settings["meta.listen"], web_server):
        ran = user.run("context", "add", "swapped", "--bootstrap", f"{NOWHERE},{address}")
        assert ran.exit_code == 3, ran.output
        assert f"{address} speaks HTTP: an admin or meta port, no Kafka listener" in ran.stderr
        assert "is not kept" in ran.stderr and not user.file.exists()
    kept = user.run("context", "add", "swapped", "--bootstrap", node.admin, "--cluster", "c")
    assert kept.exit_code == 0 and not kept.stderr

    away = user.run("context", "add", "away", "--bootstrap", NOWHERE)
    assert away.exit_code == 0 and f"warning: --bootstrap {NOWHERE} does not answer (Connection refused)" in away.stderr
    here = user.run("context", "add", "here", "--bootstrap", node.bootstrap)
    assert here.exit_code == 0 and not here.stderr


def test_the_meta_service_says_the_cluster_too_and_two_clusters_are_no_context(
    user: User, node: NodeProcess, tmp_path: Path
) -> None:
    meta = f"http://{node.settings['meta.listen']}"
    added = user.run("context", "add", "service", "--meta", f"http://{NOWHERE},{meta}")
    assert added.exit_code == 0 and cluster_of(node) in added.stdout
    assert f"no meta service answers at http://{NOWHERE} (Connection refused)" in added.stderr

    with NodeProcess(tmp_path / "other", None, {"offsets.topic.num.partitions": 1}) as other:
        ran = user.run("context", "add", "two", "--admin", other.admin, "--meta", meta)
    assert ran.exit_code == 2 and "name the addresses of one" in ran.stderr
    assert "two" not in user.run("context", "list").stdout


def test_a_context_holds_the_bucket_and_no_credentials(user: User, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    (bucket / "c1" / "data").mkdir(parents=True)
    (bucket / "c1" / "data" / "an-object").write_bytes(b"x")
    unnamed = user.run("snapshot", "list")
    assert unnamed.exit_code == 2 and "nothing names the object store" in unnamed.stderr
    assert user.run("context", "add", "prod", "--bucket", str(bucket)).exit_code == 0
    shown = user.run("snapshot", "list")
    assert shown.exit_code == 0 and "no snapshots in this bucket" in shown.stdout
    assert str(bucket) in user.run("context", "show").stdout.replace("\n", "")
    elsewhere = user.run("snapshot", "list", "--bucket", str(tmp_path / "other"))
    assert elsewhere.exit_code != 0, "the option goes before the context"
    secret = "s3://bucket?access_key_id=me&secret_access_key=hidden"
    refused = user.run("context", "add", "other", "--bucket", secret)
    assert refused.exit_code == 2 and "hidden" not in refused.stderr
