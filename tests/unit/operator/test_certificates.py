"""The operator's own authority: which certificates nodes have, and that no client is refused while it is replaced."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import Conflict, Unavailable
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.kube.certificate_files import names_of, read_certificate
from stratalog_operator.plan.actions import AuthorityStep, RenewCertificates
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.observed import SeenPod
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.specs.node import NodeIdentity, node_set
from support.golden_specs import pool
from support.operator_certificates import NOW, SECRETS, SHORT, accepts
from support.operator_certificates import CertificateRig as Rig
from support.secret_store import Secrets


# What is made ---------------------------------------------------------------------------------------------------------
async def test_each_node_gets_a_certificate_and_then_nothing_is_written() -> None:
    rig = Rig()
    assert await rig.settle() == [AuthorityStep.MAKE]

    assert set(rig.kubernetes.held) == set(SECRETS)
    assert set(rig.kubernetes.held["main-ca"]["data"]) == {"ca.crt"}, "clients get no key"
    data = set(rig.kubernetes.held["main-certificates"]["data"])
    assert data == {"ca.crt", "node-1.crt", "node-1.key", "node-2.crt", "node-2.key"}
    assert all(accepts(rig.trusted(), rig.leaf(node), NOW) for node in (1, 2))
    (owner,) = rig.kubernetes.held["main-authority"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("StorageCluster", "uid-of-main")
    assert (await rig.plan()).expires.startswith("2027-01-01")


async def test_a_certificate_has_the_names_by_which_clients_come_and_the_member_that_the_node_is() -> None:
    rig = Rig()
    await rig.settle()
    names = names_of(read_certificate(rig.leaf(2)))

    assert "DNS:main-hot-2-0.main-nodes.data.svc.cluster.local" in names
    assert {"DNS:main-bootstrap", "DNS:main-bootstrap.data.svc", "DNS:localhost", "IP:127.0.0.1"} <= names
    assert "URI:stratalog://data.main/node/2" in names
    assert not [name for name in names if "main-hot-1" in name or name.endswith("/node/1")]


async def test_a_listener_outside_adds_its_host_or_the_machine_on_which_the_pod_is() -> None:
    outside = {"name": "outside", "type": "nodeport", "firstNodePort": 30092}
    named = Rig(listener={**outside, "advertisedHost": "kafka.example.org"})
    await named.settle()
    by_machine = Rig(listener=outside)
    await by_machine.settle()
    first = by_machine.leaf()
    pod = SeenPod("main-hot-1-0", "p", "", is_ready=True, machine_address="10.0.0.7")
    by_machine.pods = (pod,)
    await by_machine.settle()

    assert "DNS:kafka.example.org" in names_of(read_certificate(named.leaf()))
    assert not [name for name in names_of(read_certificate(first)) if name == "IP:10.0.0.7"]
    assert "IP:10.0.0.7" in names_of(read_certificate(by_machine.leaf()))


async def test_a_new_node_gets_one_and_that_of_a_node_that_left_goes() -> None:
    rig = Rig()
    await rig.settle()
    before = rig.leaf(1)
    rig.nodes = 3
    await rig.settle()
    assert rig.leaf(1) == before and accepts(rig.trusted(), rig.leaf(3), NOW)
    rig.nodes = 1
    await rig.settle()

    assert set(rig.kubernetes.held["main-certificates"]["data"]) == {"ca.crt", "node-1.crt", "node-1.key"}


async def test_the_pod_mounts_the_certificate_of_its_node_alone() -> None:
    rig = Rig()
    made: Any = node_set(cluster_of(await rig.observe()), pool(), NodeIdentity(7, "hot"))
    (volume,) = [one for one in made["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls"]

    assert volume["secret"]["secretName"] == "main-certificates"
    assert {one["key"]: one["path"] for one in volume["secret"]["items"]} == {
        "node-7.crt": "tls.crt",
        "node-7.key": "tls.key",
        "ca.crt": "ca.crt",
    }


async def test_a_client_that_trusts_the_clusters_authority_takes_a_nodes_certificate_by_its_name(
    tmp_path: Path,
) -> None:
    """By OpenSSL, as it is mounted."""
    rig = Rig()
    rig.now = datetime.now(UTC)
    await rig.settle()
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    chain.write_text(rig.leaf())
    key.write_text(rig.kubernetes.text("main-certificates", "node-1.key"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, key)
    client = ssl.create_default_context(cadata=rig.trusted())
    host = "main-hot-1-0.main-nodes.data.svc.cluster.local"

    assert _shake_hands(server, client, host) is None
    refused = _shake_hands(server, client, "main-hot-2-0.main-nodes.data.svc.cluster.local")
    assert refused is not None and "Hostname mismatch" in str(refused)


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLError | None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
            ends.remove(end)
        if not ends:
            return None
    raise AssertionError("the handshake does not end")


# Renewal --------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("certificates-renewed-while-used")
async def test_no_client_is_refused_in_half_a_year_of_renewals() -> None:
    """A client that takes ca.crt within the overlap, and a node that shows what it had the day before."""
    rig = Rig(**SHORT)
    await rig.settle()
    trusted_since: list[str] = []
    authorities, shown, steps = set(), rig.leaf(), []
    for _ in range(180):
        rig.now += timedelta(days=1)
        steps += await rig.settle()
        trusted_since = [*trusted_since, rig.trusted()][-5:]
        authorities.add(rig.kubernetes.text("main-authority", "ca.crt"))
        for leaf in (shown, rig.leaf()):
            assert accepts(trusted_since[0], leaf, rig.now), f"a client of five days ago is refused at {rig.now}"
        shown = rig.leaf()

    assert len(authorities) >= 8 and 0 <= steps.count(AuthorityStep.ADD) - steps.count(AuthorityStep.SWITCH) <= 1
    assert rig.trusted().count("BEGIN CERTIFICATE") <= 3, "what expired is trusted no more"


async def test_a_certificate_is_issued_again_before_it_ends_and_not_each_day() -> None:
    rig = Rig(validityDays=4000, certificateDays=10, certificateRenewalDays=4)
    await rig.settle()
    leaves = [rig.leaf()]
    for _ in range(12):
        rig.now += timedelta(days=1)
        await rig.settle()
        leaves.append(rig.leaf())

    assert len(set(leaves)) == 3, "after 6 and after 12 days"


async def test_a_certificate_that_ends_with_its_authority_is_not_issued_again_and_again() -> None:
    rig = Rig(validityDays=40, renewalDays=1, certificateDays=30, certificateRenewalDays=20)
    await rig.settle()
    issued = 0
    for _ in range(38):
        rig.now += timedelta(days=1)
        issued += len(await rig.settle())

    assert issued <= 4


async def test_a_word_of_a_person_makes_one_other_authority_that_is_trusted_before_it_issues() -> None:
    rig = Rig()
    await rig.settle()
    first, before = rig.kubernetes.text("main-authority", "ca.crt"), rig.trusted()
    rig.annotations = {"stratalog.dev/rotate-ca": "june"}
    assert await rig.settle() == [AuthorityStep.ADD]
    assert rig.trusted().startswith(before) and rig.trusted().count("BEGIN CERTIFICATE") == 2
    assert accepts(before, rig.leaf(), rig.now), "the present one still issues"
    rig.now += timedelta(days=8)
    assert await rig.settle() == [AuthorityStep.SWITCH]

    assert rig.kubernetes.text("main-authority", "ca.crt") != first
    assert accepts(rig.trusted(), rig.leaf(), rig.now) and not accepts(before, rig.leaf(), rig.now)
    assert "next.key" not in rig.kubernetes.held["main-authority"]["data"]
    rig.now += timedelta(days=30)
    assert await rig.settle() == [], "one word, one authority"


async def test_a_former_authority_that_a_person_takes_out_is_trusted_no_more() -> None:
    rig = Rig()
    await rig.settle()
    stolen = rig.leaf()
    rig.annotations = {"stratalog.dev/rotate-ca": "june"}
    await rig.settle()
    rig.now += timedelta(days=8)
    await rig.settle()
    shown = rig.leaf()
    assert accepts(rig.trusted(), stolen, rig.now), "until then it is"
    del rig.kubernetes.held["main-authority"]["data"]["former.crt"]
    await rig.settle()

    assert rig.trusted() == rig.kubernetes.text("main-certificates", "ca.crt")
    assert not accepts(rig.trusted(), stolen, rig.now)
    assert rig.leaf() == shown and accepts(rig.trusted(), shown, rig.now), "nothing is issued again"
    assert await rig.settle() == []


async def test_an_authority_that_expired_while_no_operator_ran_is_replaced_at_once() -> None:
    rig = Rig()
    await rig.settle()
    rig.now += timedelta(days=3000)

    assert await rig.settle() == [AuthorityStep.ADD, AuthorityStep.SWITCH]
    assert accepts(rig.trusted(), rig.leaf(), rig.now)


# Faults ---------------------------------------------------------------------------------------------------------------
class Dying(Secrets):
    """Refuses writes after this many."""

    def __init__(self, writes_left: int) -> None:
        super().__init__()
        self.writes_left = writes_left

    async def ask(self, method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        if method != "GET":
            if not self.writes_left:
                raise Unavailable("the operator is killed here")
            self.writes_left -= 1
        return await super().ask(method, path, *rest, **more)


@pytest.mark.fault("certificates-renewed-while-used")
@pytest.mark.parametrize("writes", range(9))
async def test_an_operator_that_is_killed_after_any_write_leaves_no_client_that_is_refused(writes: int) -> None:
    """First certificates, another authority, its turn to issue: three writes each."""
    rig = Rig()
    rig.kubernetes = dying = Dying(writes)
    for word, days in (("", 0), ("june", 0), ("june", 8)):
        rig.annotations = {"stratalog.dev/rotate-ca": word} if word else {}
        rig.now += timedelta(days=days)
        try:
            await rig.settle()
        except Unavailable:
            if {"main-ca", "main-certificates"} <= set(dying.held):
                assert accepts(rig.trusted(), rig.leaf(), rig.now)
            dying.writes_left = 1000
            await rig.settle()

    assert accepts(rig.trusted(), rig.leaf(), rig.now)
    assert "next.crt" not in dying.held["main-authority"]["data"], "it has its turn"


async def test_a_secret_that_is_taken_away_or_damaged_is_written_again() -> None:
    rig = Rig()
    await rig.settle()
    del rig.kubernetes.held["main-ca"]
    data = rig.kubernetes.held["main-certificates"]["data"]
    data["node-1.key"] = data["node-2.key"]
    data["node-2.crt"] = "bm8gY2VydGlmaWNhdGU="
    await rig.settle()

    assert accepts(rig.trusted(), rig.leaf(1), NOW) and accepts(rig.trusted(), rig.leaf(2), NOW)
    written = rig.kubernetes.held["main-certificates"]["data"]
    assert written["node-1.key"] != written["node-2.key"]


async def test_an_authority_that_cannot_be_read_is_not_replaced_by_itself() -> None:
    rig = Rig()
    await rig.settle()
    rig.kubernetes.held["main-authority"]["data"]["ca.key"] = "bm8ga2V5"
    made = await rig.plan()

    assert made.offer.actions == [] and "put it back from a backup" in made.invalid


@pytest.mark.parametrize("name", SECRETS)
async def test_a_secret_of_others_is_not_written(name: str) -> None:
    rig = Rig()
    rig.kubernetes.give(name, "ca.crt", b"theirs")
    made = await rig.plan()

    assert made.offer.actions == [] and f"Secret {name} is there and does not belong" in made.invalid


async def test_a_pass_that_saw_an_older_secret_writes_nothing() -> None:
    rig = Rig()
    await rig.settle()
    rig.annotations = {"stratalog.dev/rotate-ca": "june"}
    seen = await rig.observe()
    (action,) = plan_certificates(seen).offer.actions
    await rig.settle()
    before = rig.trusted()
    assert isinstance(action, RenewCertificates)
    with pytest.raises(Conflict):
        await renew_certificates(rig.kubernetes, cluster_of(seen), seen.now, action)

    assert rig.trusted() == before


async def test_no_key_is_in_what_is_observed_or_planned() -> None:
    rig = Rig()
    await rig.settle()
    rig.annotations = {"stratalog.dev/rotate-ca": "june"}
    seen = await rig.observe()

    assert "PRIVATE KEY" not in repr((seen, plan_certificates(seen)))
    keys = [rig.kubernetes.text("main-authority", "ca.key"), rig.kubernetes.text("main-certificates", "node-1.key")]
    assert not any(key[40:80] in repr(seen) for key in keys)
