"""Certificates of users: which a Secret has, when it gets another, and that nodes trust whatever it has."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.model.errors import Conflict, Unavailable
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.apply.user_certificates import put_certificate
from stratalog_operator.apply.user_passwords import put_password
from stratalog_operator.kube.certificate_files import is_issued_by, is_key_of, read_certificate, subject_of
from stratalog_operator.observe.certificates import read_certificates
from stratalog_operator.observe.known_users import read_secret
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.declared.users import UserPlan, plan_user
from stratalog_operator.plan.news import of_actions
from stratalog_operator.plan.observed import Observed, Seen, SeenMeta, SeenRights, SeenUser
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.names import ANNOTATION_ROTATE, ANNOTATION_ROTATE_CA, FINALIZER
from stratalog_operator.resources.user import StorageUserStatus
from stratalog_operator.specs.node import NodeIdentity, node_set
from support.certificates import Authority
from support.golden_specs import pool
from support.operator_users import acl, may, storage_user
from support.secret_store import Secrets
from support.tls_in_memory import connected

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = {
    "validityDays": 40,
    "renewalDays": 20,
    "overlapSeconds": 5 * 86400,
    "certificateDays": 10,
    "certificateRenewalDays": 4,
}
BY_CERTIFICATE = {"type": "tls"}
LISTENER = {"name": "users", "port": 9093, "tls": True, "authentication": BY_CERTIFICATE}


class Rig:
    """A cluster with an authority of clients, and one user; passes over both."""

    def __init__(self, authority: dict[str, Any] | None = None, **user: Any) -> None:
        listeners = [{"name": "internal", "port": 9092}, LISTENER]
        tls = {"tls": {"authority": authority}} if authority else {}
        self.spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}, "listeners": listeners, **tls})
        self.kubernetes, self.now, self.annotations = Secrets(), NOW, dict[str, str]()
        self.user: SeenUser = self.with_spec(**user)
        self.rights = SeenRights(0)
        self.done: list[act.Action] = []

    def with_spec(self, **user: Any) -> SeenUser:
        one = storage_user(**{"authentication": BY_CERTIFICATE, **user})
        return replace(one, finalizers=frozenset({FINALIZER}), status=StorageUserStatus(principal="User:CN=alice"))

    def word(self, word: str) -> None:
        self.user = replace(self.user, annotations={ANNOTATION_ROTATE: word})

    async def observe(self) -> Observed:
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        whole = Seen("main", "uid-of-main", self.spec, StorageClusterStatus(), annotations=self.annotations)
        seen = Observed("data", now, whole, meta=SeenMeta("c", (), rights=self.rights), users=(self.user,))
        certificates = await read_certificates(self.kubernetes, cluster_of(seen), now)
        clients = certificates.clients
        issuer = clients.issuer.pem if clients is not None and clients.issuer is not None else ""
        secret = await read_secret(self.kubernetes, "data", self.user, issuer)
        return replace(seen, certificates=certificates, user_secrets={"alice": secret})

    async def plan(self) -> UserPlan:
        return plan_user(await self.observe(), self.user, self.user)

    async def one_pass(self) -> bool:
        """Whether something was written."""
        seen = await self.observe()
        cluster, planned = cluster_of(seen), plan_user(seen, self.user, self.user)
        actions = [*plan_certificates(seen).offer.actions, *planned.offer.actions]
        written = False
        for action in actions:
            written = written or isinstance(action, act.RenewCertificates | act.PutCertificate)
            with suppress(Conflict):  # the authority was replaced in this pass: the next one issues
                match action:
                    case act.RenewCertificates():
                        await renew_certificates(self.kubernetes, cluster, seen.now, action)
                    case act.PutCertificate():
                        await put_certificate(self.kubernetes, cluster, seen.now, action)
                self.done.append(action)
        return written

    async def settle(self) -> None:
        for _ in range(10):
            if not await self.one_pass():
                return
        raise AssertionError("a pass over what is as it should be writes nothing")

    def issued(self) -> int:
        return sum(isinstance(one, act.PutCertificate) for one in self.done)

    def certificate(self) -> str:
        return self.kubernetes.text("alice", "user.crt")

    def trusted(self) -> str:
        """By nodes, of clients."""
        return self.kubernetes.text("main-certificates", "clients-ca.crt")


def _accepts(trusted: str, shown: str, now: datetime) -> bool:
    """Whether a node with these authorities takes the certificate, at that time."""
    found = read_certificate(shown)
    authorities = [read_certificate(f"-----BEGIN{text}") for text in trusted.split("-----BEGIN")[1:]]
    chain = [found, *(one for one in authorities if is_issued_by(found, one))]
    return len(chain) > 1 and all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in chain)


async def test_a_user_gets_a_key_and_a_certificate_with_its_name_and_then_nothing_is_written() -> None:
    rig = Rig()
    await rig.settle()
    found, planned = read_certificate(rig.certificate()), await rig.plan()

    assert set(rig.kubernetes.held["alice"]["data"]) == {"user.crt", "user.key"}
    assert subject_of(found) == "CN=alice" and is_key_of(rig.kubernetes.text("alice", "user.key"), found)
    assert _accepts(rig.trusted(), rig.certificate(), NOW)
    assert not is_issued_by(found, read_certificate(rig.kubernetes.text("main-ca", "ca.crt"))), "of clients alone"
    (owner,) = rig.kubernetes.held["alice"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("StorageUser", "uid-of-alice")
    assert (rig.issued(), planned.lacks, planned.rotates_at) == (1, "", "2026-11-02T00:00:00Z")


async def test_nodes_mount_the_authorities_of_clients_beside_their_own_certificate() -> None:
    rig = Rig()
    made: Any = node_set(cluster_of(await rig.observe()), pool(), NodeIdentity(7, "hot"))
    (volume,) = [one for one in made["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls"]

    assert {"key": "clients-ca.crt", "path": "clients-ca.crt"} in volume["secret"]["items"]


async def test_openssl_takes_the_certificate_from_a_client_and_from_no_server(tmp_path: Path) -> None:
    rig, of_nodes = Rig(), Authority("of nodes")
    rig.now = datetime.now(UTC)
    await rig.settle()
    shown, node = [tmp_path / "user.crt", tmp_path / "user.key"], of_nodes.issue("node").write_folder(tmp_path)
    for path in shown:
        path.write_text(rig.kubernetes.text("alice", path.name))
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.load_cert_chain(*shown)
    client.load_verify_locations(cadata=of_nodes.certificate.decode() + rig.trusted())
    server.load_cert_chain(node / "tls.crt", node / "tls.key")
    server.load_verify_locations(cadata=rig.trusted())
    server.verify_mode = ssl.CERT_REQUIRED
    _, end = connected(client, server)
    assert (end.tls.getpeercert() or {})["subject"] == ((("commonName", "alice"),),)
    pretended = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pretended.load_cert_chain(*shown)
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        connected(client, pretended)


async def test_nothing_is_issued_before_nodes_have_been_given_the_authority() -> None:
    rig = Rig()
    first = await rig.plan()
    assert not first.offer.actions and "given to the nodes first" in first.waits and first.lacks == "its certificate"
    await rig.one_pass()

    assert "clients-ca.crt" in rig.kubernetes.held["main-certificates"]["data"] and rig.issued() == 0


@pytest.mark.fault("certificates-renewed-while-used")
async def test_no_user_is_refused_in_half_a_year_of_renewals() -> None:
    """A user that shows the certificate of the day before, and a node that trusts what it did the day before."""
    rig = Rig(SHORT)
    await rig.settle()
    shown, trusted, issuers = rig.certificate(), rig.trusted(), set()
    for _ in range(180):
        rig.now += timedelta(days=1)
        await rig.settle()
        assert _accepts(rig.trusted(), shown, rig.now) and _accepts(trusted, rig.certificate(), rig.now)
        shown, trusted = rig.certificate(), rig.trusted()
        issuers.add(read_certificate(shown).issuer.rfc4514_string())

    assert len(issuers) >= 4 and 25 <= rig.issued() <= 40


@pytest.mark.fault("certificates-renewed-while-used")
@pytest.mark.parametrize("killed_after", range(8))
async def test_an_operator_that_is_killed_while_the_authority_of_clients_is_replaced_ends_with_a_trusted_certificate(
    killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(SHORT)
    await rig.settle()
    rig.annotations = {ANNOTATION_ROTATE_CA: "june"}
    left, ask = killed_after, rig.kubernetes.ask

    async def dying(method: str, *rest: Any, **more: Any) -> Any:
        nonlocal left
        if method != "GET":
            if left == 0:
                raise Unavailable("killed")
            left -= 1
        return await ask(method, *rest, **more)

    monkeypatch.setattr(rig.kubernetes, "ask", dying)
    before, trusted = rig.certificate(), rig.trusted()
    for _ in range(6):
        rig.now += timedelta(days=1)
        try:
            await rig.settle()
        except Unavailable:
            left = 1_000
        assert _accepts(rig.trusted(), rig.certificate(), rig.now) and _accepts(trusted, rig.certificate(), rig.now)
        trusted = rig.trusted()
    await rig.settle()

    assert _accepts(rig.trusted(), rig.certificate(), rig.now) and rig.certificate() != before
    assert len(rig.trusted().split("-----BEGIN")) == 3, "the present one and the former one"


async def test_a_word_of_a_person_has_one_other_certificate_issued_and_the_earlier_one_stays_valid() -> None:
    rig = Rig()
    await rig.settle()
    certificates = [rig.certificate()]
    for word in ("june", "june", "july"):
        rig.word(word)
        await rig.settle()
        certificates.append(rig.certificate())
    first, second, same, third = certificates

    assert second == same and len({first, second, third}) == 3
    assert all(_accepts(rig.trusted(), one, rig.now) for one in certificates)
    told = [(one.reason, one.is_warning) for one in of_actions(rig.done)]
    assert told == [("CertificateRotated", False)] * 2, "the first one is no news"


async def test_a_certificate_is_renewed_by_age_where_the_object_says_so() -> None:
    rig = Rig(authentication={**BY_CERTIFICATE, "rotateAfterDays": 30})
    await rig.settle()
    assert (await rig.plan()).rotates_at == "2026-01-31T00:00:00Z"
    for days, issued in ((29, 1), (30, 2)):
        rig.now = NOW + timedelta(days=days)
        await rig.settle()
        assert rig.issued() == issued


@pytest.mark.parametrize("broken", ["cut", "key", "other-name", "other-authority", "gone"])
async def test_what_the_cluster_would_refuse_is_issued_again(broken: str) -> None:
    rig, other = Rig(), Rig(userName="bob" if broken == "other-name" else None)
    await rig.settle()
    if broken == "other-name":
        other.kubernetes = rig.kubernetes
        held = rig.kubernetes.held.pop("alice")
        await other.settle()
        rig.kubernetes.held["alice"] = {**held, "data": rig.kubernetes.held["alice"]["data"]}
    else:
        await other.settle()
    data = rig.kubernetes.held["alice"]["data"]
    if broken == "cut":
        data["user.crt"] = data["user.crt"][:40]
    elif broken == "key":
        data["user.key"] = other.kubernetes.held["alice"]["data"]["user.key"]
    elif broken == "other-authority":
        data |= other.kubernetes.held["alice"]["data"]
    elif broken == "gone":
        del rig.kubernetes.held["alice"]
    assert (await rig.plan()).lacks == "its certificate"
    await rig.settle()

    found = read_certificate(rig.certificate())
    assert subject_of(found) == "CN=alice" and is_key_of(rig.kubernetes.text("alice", "user.key"), found)
    assert _accepts(rig.trusted(), rig.certificate(), NOW) and (await rig.plan()).lacks == ""


@pytest.mark.fault("secret-of-others-user")
async def test_a_secret_of_others_is_never_written() -> None:
    rig = Rig()
    rig.kubernetes.give("alice", "theirs", b"theirs")
    await rig.settle()

    assert set(rig.kubernetes.held["alice"]["data"]) == {"theirs"}
    assert "does not belong to this StorageUser" in (await rig.plan()).invalid


@pytest.mark.parametrize(
    ("user", "spec", "words"),
    [
        ("a" * 65, {}, "cannot be the common name"),
        ("a+b", {}, "cannot be the common name"),
        ("alice", {"listeners": [{"name": "internal", "port": 9092}]}, "needs a listener of cluster main"),
        ("alice", {"tls": {"certificateSecretRef": "theirs"}}, "use tls-external"),
    ],
)
async def test_what_cannot_be_issued_is_said_and_rules_are_made_all_the_same(
    user: str, spec: dict[str, Any], words: str
) -> None:
    rig = Rig(userName=user, authorization=may(acl()))
    given = {**rig.spec.model_dump(by_alias=True, exclude_none=True), **spec}
    rig.spec = StorageClusterSpec.model_validate(given)
    rig.user = replace(rig.user, status=StorageUserStatus(principal=f"User:CN={user}"))
    planned = await rig.plan()

    assert words in planned.invalid and "its certificate" in planned.lacks
    assert [type(one) for one in planned.offer.actions] == [act.MakeRules]


async def test_an_authority_of_clients_that_cannot_be_read_is_never_replaced_by_itself() -> None:
    rig = Rig()
    await rig.settle()
    del rig.kubernetes.held["main-clients-authority"]["data"]["ca.key"]
    rig.word("june")
    before = {name: dict(held["data"]) for name, held in rig.kubernetes.held.items()}
    await rig.settle()

    assert {name: held["data"] for name, held in rig.kubernetes.held.items()} == before
    assert "put it back from a backup" in plan_certificates(await rig.observe()).invalid
    assert "put it back from a backup" in (await rig.plan()).waits


@pytest.mark.parametrize("broken", ["no-key", "of-others"])
async def test_nodes_get_their_certificates_while_the_authority_of_clients_cannot_be_used(broken: str) -> None:
    """Otherwise those of nodes would end before a person looks."""
    rig = Rig()
    await rig.settle()
    held, trusted = rig.kubernetes.held["main-clients-authority"], rig.trusted()
    if broken == "no-key":
        del held["data"]["ca.key"]
    else:
        held["metadata"]["ownerReferences"] = []
    of_clients, first = dict(held["data"]), rig.kubernetes.text("main-ca", "ca.crt")
    rig.annotations = {ANNOTATION_ROTATE_CA: "june"}
    await rig.settle()

    assert rig.kubernetes.text("main-ca", "ca.crt") != first, "the next authority of nodes is trusted"
    assert (rig.trusted(), held["data"]) == (trusted, of_clients)
    made = plan_certificates(await rig.observe())
    assert "main-clients-authority" in made.invalid and not made.offer.actions


async def test_a_user_that_changes_between_password_and_certificate_keeps_nothing_of_the_other() -> None:
    rig = Rig()
    await rig.settle()
    by_certificate = rig.user
    rig.user = replace(rig.with_spec(authentication={"type": "scram-sha-512"}), status=by_certificate.status)

    class Meta:
        async def put_credential(self, credential: Any) -> None:
            assert credential.user == "alice"

    seen = await rig.observe()
    (put,) = [one for one in plan_user(seen, rig.user, rig.user).offer.actions if isinstance(one, act.PutPassword)]
    await put_password(rig.kubernetes, Meta(), "data", seen.now, put)
    assert set(rig.kubernetes.held["alice"]["data"]) == {"password", "sasl.jaas.config"}
    rig.user = by_certificate
    await rig.settle()

    assert set(rig.kubernetes.held["alice"]["data"]) == {"user.crt", "user.key"}


async def test_no_key_is_in_what_the_operator_notes() -> None:
    rig = Rig()
    with capture_logs() as lines:
        await rig.settle()
        seen, planned = await rig.observe(), await rig.plan()

    assert "PRIVATE KEY" in rig.kubernetes.text("alice", "user.key")
    assert "PRIVATE" not in repr((lines, seen, planned, rig.done))
