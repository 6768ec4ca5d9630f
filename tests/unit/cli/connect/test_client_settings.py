"""Files with the settings of a client: as Java's tools and librdkafka write them; what is not understood is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.connect.client_settings import PLAIN_TEXT, properties_of, read_client_settings, settings_of
from stratalog.connect.token_endpoint import TokenEndpoint
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.listeners import SecurityProtocol

JAVA = r"""
# of kafka-topics.sh --command-config
bootstrap.servers = broker:9094
security.protocol=SASL_SSL
sasl.mechanism: SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="al\\"ice" \
    password="open, \\\\ = sesame;";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.crt
"""


def test_a_file_of_java_is_read() -> None:
    found = settings_of(properties_of(JAVA), "client.properties")
    assert (found.protocol, found.mechanism) == (SecurityProtocol.SASL_SSL, "SCRAM-SHA-512")
    assert (found.user, found.password) == ('al"ice', "open, \\ = sesame;")
    assert found.authorities == "/etc/ca.crt" and found.checks_host
    assert found.of_librdkafka() == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.crt",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'al"ice',
        "sasl.password": "open, \\ = sesame;",
    }


def test_names_of_librdkafka_mean_the_same() -> None:
    text = (
        "security.protocol=sasl_ssl\nsasl.mechanisms=PLAIN\nsasl.username=alice\nsasl.password=secret\n"
        "ssl.ca.location=ca.crt\nssl.certificate.location=tls.crt\nssl.key.location=tls.key\n"
        "ssl.endpoint.identification.algorithm=none\n"
    )
    found = settings_of(properties_of(text), "")
    assert (found.user, found.password, found.authorities) == ("alice", "secret", "ca.crt")
    assert (found.certificate, found.key, found.checks_host) == ("tls.crt", "tls.key", False)


def test_a_keystore_of_java_holds_certificate_and_key() -> None:
    found = settings_of({"security.protocol": "SSL", "ssl.keystore.location": "me.pem"}, "")
    assert (found.certificate, found.key) == ("me.pem", "me.pem")


TOKEN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"


def test_a_token_comes_from_a_file_and_is_read_at_each_login(tmp_path: Path) -> None:
    file = tmp_path / "my token"
    jaas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;"
    handler = {"sasl.login.callback.handler.class": "x.Handler", "sasl.jaas.config": jaas}
    found = settings_of(TOKEN | handler | {URL: file.as_uri()}, "")
    for token, end in (("e30.eyJleHAiOjEyMzR9.x", 1234.0), ("e30.eyJleHAiOjU2Nzh9.x", 5678.0)):
        file.write_text(f"{token}\n")
        assert found.bearer_token() == token
        told = found.of_librdkafka()["oauth_cb"]
        assert callable(told) and told("") == (token, end)
    file.write_text("two words\n")
    with pytest.raises(InvalidRequest, match="does not hold one token") as refused:
        found.bearer_token()
    assert "two words" not in str(refused.value)


def test_a_token_of_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in (TOKEN | {URL: "file:///nowhere"}).items()))
    found = read_client_settings(file, {"STRATALOG_BEARER_TOKEN": "abc.def", "STRATALOG_PASSWORD": "secret"})
    assert found.bearer_token() == "abc.def"
    assert "abc.def" not in repr(found) and "secret" not in repr(found)


@pytest.mark.parametrize("url", ["file://host/token", "file:"])
def test_a_token_is_read_from_files_of_this_machine_alone(url: str) -> None:
    with pytest.raises(InvalidRequest, match="a file of this machine"):
        settings_of(TOKEN | {URL: url}, "")
    with pytest.raises(InvalidRequest, match="they name no token"):
        settings_of(TOKEN, "")


KAFKAS = {
    "sasl.oauthbearer.client.credentials.client.id": "robot",
    "sasl.oauthbearer.client.credentials.client.secret": "sesame",
    "sasl.oauthbearer.scope": "read",
}
LIBRDKAFKAS = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "robot",
    "sasl.oauthbearer.client.secret": "sesame",
    "sasl.oauthbearer.scope": "read",
}
OLDER = {
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'clientId="robot" clientSecret="sesame" scope="read";'
}


@pytest.mark.parametrize(
    "names", [KAFKAS, LIBRDKAFKAS, OLDER, KAFKAS | {"sasl.jaas.config": "x.Y required clientId=z;"}]
)
def test_a_client_of_an_identity_provider_is_named_as_in_kafka_and_librdkafka(names: dict[str, str]) -> None:
    found = settings_of(TOKEN | names | {URL: "https://idp/token", "https.ca.location": "/ca"}, "")
    assert found.tokens is not None
    assert found.tokens.endpoint == TokenEndpoint("https://idp/token", "robot", "sesame", "read", "/ca")
    assert "sesame" not in repr(found)
    told = found.of_librdkafka()
    assert told.pop("ssl.endpoint.identification.algorithm") == "https"
    assert told == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "robot",
        "sasl.oauthbearer.client.secret": "sesame",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.oauthbearer.scope": "read",
        "https.ca.location": "/ca",
    }


def test_a_secret_of_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    values = TOKEN | KAFKAS | {URL: "https://idp/token"}
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    found = read_client_settings(file, {"STRATALOG_CLIENT_SECRET": "from outside"})
    assert found.tokens is not None and found.tokens.endpoint.client_secret == "from outside"
    assert read_client_settings(file, {"STRATALOG_BEARER_TOKEN": "abc"}).tokens is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sasl.oauthbearer.client.credentials.client.id": ""}, "they name no client"),
        ({"sasl.oauthbearer.client.credentials.client.secret": ""}, r"no secret of the client robot: .*CLIENT_SECRET"),
        ({URL: "http://idp/token"}, "not encrypted"),
        ({URL: "/token"}, "expected https"),
    ],
)
def test_a_client_without_all_that_it_needs_is_refused(changed: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        settings_of(TOKEN | KAFKAS | {URL: "https://idp/token"} | changed, "")
    assert "sesame" not in str(refused.value)


def test_nothing_set_is_plain_text() -> None:
    assert settings_of({"client.id": "x", "acks": "all"}, "") == PLAIN_TEXT
    assert PLAIN_TEXT.of_librdkafka() == {}


def test_the_environment_goes_before_the_password_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\n")
    assert read_client_settings(file, {"STRATALOG_PASSWORD": "from outside"}).password == "from outside"
    with pytest.raises(InvalidRequest, match="no password of alice"):
        read_client_settings(file, {})


def test_a_password_is_in_no_text() -> None:
    found = settings_of(properties_of(JAVA), "client.properties")
    assert "sesame" not in repr(found) and "sesame" not in str(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protocol=TLS", "expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism is missing"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism=GSSAPI: commands log in by PLAIN"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "they name no user"),
        ("security.protocol=SSL\nssl.truststore.type=JKS", "only PEM is read here"),
        ("security.protocol=SSL\nssl.truststore.type=JKS\nssl.truststore.password=x", "only PEM is read here"),
        ("security.protocol=SSL\nssl.trustore.location=x", "did you mean 'ssl.truststore.location'"),
        ("security.protocol=SSL\nssl.certificate.location=a", "needs its key"),
        ("security.protocol=SSL\nssl.truststore.password=x", "ssl.truststore.password is not understood"),
        ("enable.ssl.certificate.verification=false", "is not understood"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=Module required username=a sesame",
            "sasl.jaas.config: expected",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused_with_the_file_and_the_key(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=why.replace(".", r"\.")) as refused:
        read_client_settings(file, {})
    assert str(file) in str(refused.value) and "sesame" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="--client-config"):
        read_client_settings(tmp_path / "none", {})
