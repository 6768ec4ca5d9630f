"""Listeners that ask clients who they are, from the object to the settings that a node reads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from stratalog.model.listeners import SecurityProtocol
from stratalog.settings.choices import ClientAuth
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.specs.client_security import CERTIFICATE_FOLDER, why_without_effect
from stratalog_operator.specs.client_services import inside_services
from stratalog_operator.specs.node import NodeIdentity, node_set
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.settings_file import settings_text
from support.golden_specs import cluster, pool

INNER = {"name": "internal", "port": 9092}


def _cluster(*listeners: dict[str, Any], **more: Any) -> Cluster:
    return cluster({"listeners": [INNER, *listeners], "tls": {"certificateSecretRef": "mine"}, **more})


def _users(**more: Any) -> dict[str, Any]:
    return {"name": "users", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}, **more}


def _pod(one: Cluster) -> dict[str, Any]:
    made: Any = node_set(one, pool(), NodeIdentity(1, "hot"))
    spec = made["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def _settings(one: Cluster) -> ProcessSettings:
    """As the process in the pod reads them."""
    command = _pod(one)["containers"][0]["command"]
    given = [value for key, value in pairwise(command) if key == "--set"]
    given = [value.replace("$(POD_NAME)", "main-hot-1-0").replace("$(HOST_IP)", "10.0.0.1") for value in given]
    return load_process_settings(assignments=[*settings_text(one).splitlines(), *given], has_bucket=False)


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [
        (_users(), SecurityProtocol.SASL_SSL),
        (_users(tls=False), SecurityProtocol.SASL_PLAINTEXT),
        (_users(authentication={"type": "tls"}), SecurityProtocol.SSL),
        (_users(authentication=None), SecurityProtocol.SSL),
    ],
)
def test_a_node_reads_from_its_command_what_the_listener_asks_of_clients(
    listener: dict[str, Any], protocol: SecurityProtocol
) -> None:
    settings = _settings(_cluster(listener))

    assert settings.security_protocols == {"users": protocol}
    assert [(one.name, one.port) for one in settings.further_listeners] == [("users", 9093)]
    assert settings.ssl_certificate_folder == (CERTIFICATE_FOLDER if protocol.is_tls else "")
    required = listener["authentication"] == {"type": "tls"}
    assert settings.ssl_client_auth is (ClientAuth.REQUIRED if required else ClientAuth.NONE)


def test_passwords_are_asked_for_by_the_mechanism_that_users_have() -> None:
    assert _settings(_cluster(_users())).sasl_mechanisms == ("SCRAM-SHA-512",)


def test_tokens_are_checked_by_what_the_listener_says() -> None:
    token = {
        "type": "oauth",
        "jwksEndpointUri": "https://example.org/keys",
        "validIssuerUri": "https://example.org/",
        "audience": "kafka",
        "userNameClaim": "email",
    }
    settings = _settings(_cluster(_users(), _users(name="tokens", port=9095, authentication=token)))

    assert set(settings.sasl_mechanisms) == {"SCRAM-SHA-512", "OAUTHBEARER"}
    assert settings.sasl_oauthbearer_jwks_endpoint_url == "https://example.org/keys"
    assert settings.sasl_oauthbearer_expected_issuer == "https://example.org/"
    assert settings.sasl_oauthbearer_expected_audience == "kafka"
    assert settings.sasl_oauthbearer_sub_claim_name == "email"


def test_super_users_are_principals_of_type_user_and_a_subject_may_have_commas() -> None:
    given = {"type": "simple", "superUsers": ["admin", "CN=backup,O=example"]}
    settings = _settings(_cluster(_users(), authorization=given))

    assert settings.has_authorizer
    assert settings.super_users == "User:admin;User:CN=backup,O=example"
    assert not settings.allow_everyone_if_no_acl_found


def test_a_cluster_that_asks_for_nothing_gives_its_nodes_no_setting_and_no_volume_for_it() -> None:
    one = cluster()

    assert [one["name"] for one in _pod(one)["volumes"]] == ["tmp", "settings", "token", "data"]
    assert not [word for word in _pod(one)["containers"][0]["command"] if "ssl." in word or "sasl." in word]


def test_the_certificate_is_mounted_whole_and_read_only_where_a_listener_shows_it() -> None:
    spec = _pod(_cluster(_users()))

    assert {"name": "tls", "secret": {"secretName": "mine", "defaultMode": 0o440}} in spec["volumes"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert {"name": "tls", "mountPath": CERTIFICATE_FOLDER, "readOnly": True} in mounts
    assert not [one for one in _pod(_cluster(_users(tls=False)))["volumes"] if one["name"] == "tls"]


def test_clients_inside_kubernetes_reach_a_second_listener_by_the_names_of_the_pods() -> None:
    one = _cluster(_users())
    command = _pod(one)["containers"][0]["command"]
    (told,) = [word for word in command if word.startswith("advertised.listeners=")]
    services: Any = inside_services(one)

    host = "$(POD_NAME).main-nodes.data.svc.cluster.local"
    assert told == f"advertised.listeners={host}:9092,users://{host}:9093"
    assert [[port["port"] for port in service["spec"]["ports"]] for service in services] == [
        [9092, 9644, 9093],
        [9092, 9093],
    ]


def test_the_meta_service_and_mounts_read_no_setting_of_a_listener_that_they_do_not_have() -> None:
    """They refuse a protocol of a listener that does not exist."""
    text = settings_text(_cluster(_users(), authorization={"type": "simple"}))

    assert "listener.security.protocol.map" not in text
    load_process_settings(assignments=text.splitlines(), has_bucket=False)


def test_a_user_is_told_what_its_cluster_does_not_ask_for() -> None:
    is_open, asks = cluster(), _cluster(_users(), authorization={"type": "simple"})

    assert "no listener of cluster main has authentication scram-sha-512" in why_without_effect(
        is_open, "scram-sha-512"
    )
    assert "everybody may do everything" in why_without_effect(is_open, None)
    assert why_without_effect(asks, "scram-sha-512") == ""
    assert "authentication tls" in why_without_effect(asks, "tls-external")


def test_settings_that_have_fields_cannot_be_given_beside_them() -> None:
    schema = StorageClusterSpec.model_json_schema(by_alias=True)["properties"]["config"]
    rule = schema["x-kubernetes-validations"][0]["rule"]

    for key in ("listener.security.protocol.map", "super.users", "ssl.certificate.folder", "sasl.enabled.mechanisms"):
        assert f"'{key}'" in rule
