"""E49: the secure cluster of the examples. A user reads one topic and nothing else, authorities and a password are
replaced while another one writes, and denials are in the audit log."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from stratalog_e2e.kubernetes_api import Object, documents, until
from stratalog_e2e.logged_in import TRUSTED
from stratalog_e2e.place import CLUSTER, EXAMPLES, Place, changed, pool_object
from stratalog_e2e.traffic import Clients

pytestmark = [
    pytest.mark.scenario("E49"),
    pytest.mark.without_traffic("its clients log in, and the test itself judges what became of each record"),
]
BOOTSTRAP = f"{CLUSTER}-bootstrap:9093"
READER, WRITER = "sales", "writer"
OVERLAP_S, ROTATES_S = 60, 600
DENIED = "TOPIC_AUTHORIZATION_FAILED"


def test_a_user_reads_one_topic_and_rotation_under_traffic_fails_no_record(stored: Place) -> None:
    stored.expects_restarts = True  # of etcd, whose members read authorities at their start alone
    stored.expected_warnings |= {"Troubles"}
    _make_secure_cluster(stored)
    for name in ("flights", "secret"):
        stored.make_topic(name)
    stored.apply(*documents(EXAMPLES / "user.yaml"), _writer())
    for user in (READER, WRITER, "admin"):
        stored.is_true("storageuser", user, "Ready", 120)
    clients = Clients(stored.kube, stored.name, stored.images.clients, (TRUSTED, READER, WRITER))

    clients.ask("login/start", bootstrap=BOOTSTRAP, user=WRITER, topic="flights")
    _flows(clients)
    assert _attempt(clients, "read", READER, "flights", group="sales-1") == ""
    assert _attempt(clients, "read", READER, "flights", group="others") == "GROUP_AUTHORIZATION_FAILED"
    assert _attempt(clients, "read", READER, "secret", group="sales-1") == DENIED
    assert _attempt(clients, "write", READER, "flights") == DENIED
    denials = until(lambda: _denials(stored), lambda found: {"flights", "secret"} <= _topics(found), 60, "are audited")
    assert {one["principal"] for one in denials} == {f"User:{READER}"}

    _rotate_authorities(stored, clients)
    _rotate_password(stored, clients)
    told = clients.ask("login/end")
    assert (told["failed"], told["left"]) == ([], 0) and told["acknowledged"] > 0, told

    # Revoked, and at once: the password is refused.
    stored.kube.delete("storageuser", READER, stored.name, timeout=60)
    assert _attempt(clients, "read", READER, "flights", group="sales-1") != ""


def _make_secure_cluster(place: Place) -> None:
    """As in the example, but for its ports outside, the image, and the times of the authority."""
    cluster, admin = documents(EXAMPLES / "secure-cluster.yaml")
    repository, _, tag = place.images.product.rpartition(":")
    inside = [one for one in cluster["spec"]["listeners"] if one.get("type") != "nodeport"]
    changes = {
        "spec.image": {"repository": repository, "tag": tag},
        "spec.listeners": inside,
        "spec.tls.authority": {"overlapSeconds": OVERLAP_S},
    }
    place.apply(changed(cluster, changes), pool_object(3), admin)
    place.cluster_is_ready()


def _writer() -> Object:
    """It may write the topic flights."""
    (made,) = documents(EXAMPLES / "user.yaml")
    made["metadata"]["name"] = WRITER
    acls = [{"resource": {"type": "topic", "name": "flights"}, "operations": ["Describe", "Write"]}]
    return changed(made, {"spec.authorization": {"type": "simple", "acls": acls}, "spec.quotas": None})


def _attempt(clients: Clients, what: str, user: str, topic: str, group: str = "") -> str:
    return str(clients.ask(f"login/{what}", bootstrap=BOOTSTRAP, user=user, topic=topic, group=group)["error"])


def _flows(clients: Clients) -> None:
    before = clients.ask("login/told")["acknowledged"]
    told = lambda: clients.ask("login/told")  # noqa: E731
    until(told, lambda now: now["failed"] or now["acknowledged"] > before + 20, 120, "more records are acknowledged")


def _denials(place: Place) -> list[dict[str, Any]]:
    """Lines of all storage nodes."""
    lines = [line for name in place.pods() for line in place.kube.run("logs", name, "-n", place.name).splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{") and '"audit"' in line]
    return [one for one in found if one.get("event") == "audit" and one["outcome"] == "denied"]


def _topics(denials: list[dict[str, Any]]) -> set[str]:
    return {one["resource"] for one in denials if one["resource_type"] == "TOPIC"}


def _rotate_authorities(place: Place, clients: Clients) -> None:
    """Of the cluster and of etcd."""
    first = _held(place, f"{CLUSTER}-certificates")
    members = set(place.pod_uids("etcd").values())
    place.kube.run("annotate", f"scl/{CLUSTER}", "stratalog.dev/rotate-ca=june", "-n", place.name)

    def left() -> set[str]:
        now = _held(place, f"{CLUSTER}-certificates")
        return {key for key in ("node-1.crt", "meta.crt", "operator.crt", "etcd.crt") if now[key] == first[key]}

    until(left, lambda found: not found, ROTATES_S, "the next authorities have issued all certificates")
    assert not set(place.pod_uids("etcd").values()) & members, "each member has started with its next authority"
    place.cluster_is_ready(ROTATES_S)
    _flows(clients)
    # A client that begins now trusts what the Secret has now, once Kubernetes has renewed its files.
    until(
        lambda: _attempt(clients, "read", READER, "flights", group="sales-2"),
        lambda error: not error,
        180,
        "it logs in",
    )


def _rotate_password(place: Place, clients: Clients) -> None:
    first = _held(place, WRITER)["password"]
    place.kube.run("annotate", f"su/{WRITER}", "stratalog.dev/rotate=june", "-n", place.name)
    until(lambda: _held(place, WRITER)["password"], lambda now: now != first, 60, "there is another password")
    _flows(clients)
    until(lambda: _attempt(clients, "write", WRITER, "flights"), lambda error: not error, 180, "the new one is taken")


def _held(place: Place, secret: str) -> dict[str, str]:
    data = (place.get("secret", secret) or {}).get("data", {})
    return {key: base64.b64decode(value).decode() for key, value in data.items()}
