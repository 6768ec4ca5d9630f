"""How the pipeline logs in to a Kafka: by files and the environment of each process, never by a secret in an option."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("pyspark", reason=NO_PIPELINE)

from stratalog.model.errors import Forbidden, InvalidRequest, NotFound
from stratalog_pipeline.sending.login import KafkaLogin, login_with
from stratalog_pipeline.source.writer import WriteOptions, parse_write_options

SECRETS = (
    "sasl.password",
    "sasl.jaas.config",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.truststore.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
)
SERVERS = "kafka-1:9092,kafka-2:9092"


def client_file(folder: Path, **changed: str) -> Path:
    values = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "hush",
        "ssl.truststore.location": "/etc/ca.crt",
    } | {key.replace("_", "."): value for key, value in changed.items()}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items() if value))
    return file


def home_with_context(folder: Path, client_config: Path) -> dict[str, str]:
    """An environment in which a context is in use."""
    (folder / "stratalog").mkdir()
    context = {"bootstrap": SERVERS, "client_config": str(client_config)}
    document = {"current": "prod", "contexts": {"prod": context, "bare": {"admin": "a:9644"}}}
    (folder / "stratalog" / "contexts.json").write_text(json.dumps(document))
    return {"XDG_CONFIG_HOME": str(folder)}


def parsed(environment: dict[str, str], **options: str) -> WriteOptions:
    given = {"topic": "t"} | {key.replace("_", "."): value for key, value in options.items()}
    return parse_write_options(given, ["value"], environment)


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_is_neither_an_option_nor_a_setting(key: str) -> None:
    options = {"topic": "t", "kafka.bootstrap.servers": SERVERS, f"kafka.{key}": "hush-hush"}
    for refuse in (
        lambda: parse_write_options(options, ["value"], {}),
        lambda: KafkaLogin(settings=((key, "hush-hush"),)),
    ):
        with pytest.raises(InvalidRequest, match="is a secret") as refused:
            refuse()
        assert "hush-hush" not in str(refused.value) and key in str(refused.value)


def test_a_login_carries_the_name_of_a_file_and_no_secret(tmp_path: Path) -> None:
    file = client_file(tmp_path)
    options = parsed({}, kafka_bootstrap_servers=SERVERS, clientConfig=str(file))
    assert b"hush" not in pickle.dumps(options) and "hush" not in repr(options)
    found = pickle.loads(pickle.dumps(options)).login.of_librdkafka()
    assert (found["sasl.username"], found["sasl.password"]) == ("alice", "hush")
    assert (found["security.protocol"], found["ssl.ca.location"]) == ("SASL_SSL", "/etc/ca.crt")


def test_a_password_may_come_from_the_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = login_with(str(client_file(tmp_path, sasl_password="")), {})
    with pytest.raises(InvalidRequest, match="hold no password of alice"):
        login.of_librdkafka()
    monkeypatch.setenv("STRATALOG_PASSWORD", "of the environment")
    assert login.of_librdkafka()["sasl.password"] == "of the environment"
    assert b"of the environment" not in pickle.dumps(login)


def test_the_context_of_the_servers_says_how_to_log_in(tmp_path: Path) -> None:
    file = client_file(tmp_path)
    environment = home_with_context(tmp_path, file)
    named = parsed(environment, context="prod")
    assert (named.servers, named.login.client_config) == (SERVERS, str(file))
    assert parsed(environment, kafka_bootstrap_servers="kafka-2:9092").login.client_config == str(file)
    assert parsed(environment, kafka_bootstrap_servers="other:9092").login == KafkaLogin(), "it is sent to no other"


def test_the_environment_goes_before_the_context_and_the_option_before_both(tmp_path: Path) -> None:
    environment = home_with_context(tmp_path, client_file(tmp_path)) | {"STRATALOG_CLIENT_CONFIG": "/of/environment"}
    assert parsed(environment, context="prod").login.client_config == "/of/environment"
    assert parsed(environment, context="prod", clientConfig="/of/option").login.client_config == "/of/option"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"context": "none"}, NotFound, "there is no context 'none'"),
        ({"context": "bare"}, InvalidRequest, "context bare names no bootstrap address"),
        ({"context": "prod", "kafka.bootstrap.servers": "other:1"}, InvalidRequest, "not sent to others"),
    ],
)
def test_a_context_that_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, str], kind: type[Exception], words: str
) -> None:
    environment = home_with_context(tmp_path, client_file(tmp_path))
    with pytest.raises(kind, match=words):
        parse_write_options({"topic": "t"} | options, ["value"], environment)


@pytest.mark.parametrize("key", ["security.protocol", "sasl.username", "ssl.ca.location"])
def test_a_login_is_not_mixed_of_two(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{key} is given beside the client settings .*client.properties"):
        login_with(str(client_file(tmp_path)), {key: "x"})
    login_with(str(client_file(tmp_path)), {"linger.ms": "5"})


def test_a_refusal_names_user_and_right_and_other_errors_are_none(tmp_path: Path) -> None:
    login = login_with(str(client_file(tmp_path)), {})
    for code in (29, 31):
        refused = login.refusal(code, "orders", SERVERS)
        assert isinstance(refused, Forbidden)
        assert str(refused).startswith(f"User:alice has no right to WRITE of topic orders at {SERVERS}")
        assert "acls add --allow-principal User:alice --operation WRITE --topic orders" in str(refused)
    assert login.refusal(3, "orders", SERVERS) is None and login.refusal(-195, "orders", SERVERS) is None
