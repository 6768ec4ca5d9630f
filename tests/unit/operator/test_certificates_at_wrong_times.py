"""The operator's own authority while a clock is wrong, what is next is damaged, or one rotation follows another: what
is shown is trusted and valid again without a person where that is safe, and a condition says what is wrong."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.plan.actions import AuthorityStep, PutCertificate, PutPassword
from stratalog_operator.plan.declared.user_certificates import plan_user_certificate
from stratalog_operator.plan.observed import SeenCertificates, SeenUserCertificate, SeenUserSecret
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.names import ANNOTATION_ROTATE_CA
from stratalog_operator.specs.certificate_secrets import MOST_FORMER
from support.operator_certificates import NOW, CertificateRig, accepts
from support.operator_user_scenes import users_world
from support.operator_users import storage_user

DAY = timedelta(days=1)
OF_USERS = {"authentication": {"type": "tls"}}


def _rotate(rig: CertificateRig, word: str) -> None:
    rig.annotations = {ANNOTATION_ROTATE_CA: word}


def _loads(trusted: str) -> int:
    """How many authorities OpenSSL takes from it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted)
    return context.cert_store_stats()["x509_ca"]


# What is next ---------------------------------------------------------------------------------------------------------
DAMAGES: dict[str, Callable[[dict[str, str]], object]] = {
    "no certificate": lambda data: data.update({"next.crt": "bm8gY2VydGlmaWNhdGU="}),
    "half of it": lambda data: data.update({"next.crt": data["next.crt"][:200]}),
    "not base64": lambda data: data.update({"next.crt": "%"}),
    "no key": lambda data: data.update({"next.key": "bm8ga2V5"}),
    "the key of another": lambda data: data.update({"next.key": data["ca.key"]}),
    "its key is gone": lambda data: data.pop("next.key"),
    "its certificate is gone": lambda data: data.pop("next.crt"),
}


@pytest.mark.fault("next-authority-damaged")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("secret", ["main-authority", "main-clients-authority"])
async def test_a_next_authority_that_is_damaged_is_replaced_and_its_overlap_begins_again(
    secret: str, damage: str
) -> None:
    rig = CertificateRig(listener=OF_USERS)
    await rig.settle()
    first = rig.trusted()
    _rotate(rig, "june")
    await rig.settle()
    rig.now += 6 * DAY
    DAMAGES[damage](rig.kubernetes.held[secret]["data"])
    planned = await rig.plan()
    assert f"Secret {secret} cannot be read or do not fit each other" in planned.invalid
    await rig.settle()
    assert (await rig.plan()).invalid == "", "it is repaired, and said no more"
    held = rig.kubernetes.held[secret]["data"]
    assert {"next.crt", "next.key"} <= set(held) and _loads(rig.trusted()) == 2
    assert accepts(first, rig.leaf(), rig.now), "nobody has shown anything of it"
    rig.now += 6 * DAY
    await rig.settle()
    assert "next.crt" in held, "clients have not known it for the whole overlap"
    rig.now += 2 * DAY
    await rig.settle()

    assert "next.crt" not in rig.kubernetes.held[secret]["data"]
    assert accepts(rig.trusted(), rig.leaf(), rig.now)


async def test_a_damaged_next_authority_is_given_to_no_client() -> None:
    """OpenSSL would take none of the others with it."""
    rig = CertificateRig()
    await rig.settle()
    data = rig.kubernetes.held["main-authority"]["data"]
    data["next.crt"] = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n").decode()
    data["former.crt"] = data["next.crt"]
    await rig.settle()

    assert _loads(rig.trusted()) == 2 and "former" not in rig.trusted()


# One rotation after another -------------------------------------------------------------------------------------------
@pytest.mark.fault("certificates-renewed-while-used")
async def test_a_certificate_of_an_authority_before_the_former_one_is_taken_until_it_ends() -> None:
    """Such as that of a client which reads its Secret at its start alone."""
    rig = CertificateRig(listener=OF_USERS)
    await rig.settle()
    shown, of_clients = rig.leaf(), rig.kubernetes.text("main-clients-authority", "ca.crt")
    for word in ("june", "july", "august"):
        _rotate(rig, word)
        await rig.settle()
        rig.now += 8 * DAY
        await rig.settle()

    assert accepts(rig.trusted(), shown, rig.now) and accepts(rig.trusted(), rig.leaf(), rig.now)
    assert of_clients in rig.kubernetes.text("main-certificates", "clients-ca.crt")
    rig.now = NOW + 1826 * DAY
    await rig.settle()
    assert of_clients not in rig.kubernetes.text("main-certificates", "clients-ca.crt"), "it has expired"


async def test_a_word_waits_while_there_are_as_many_former_authorities_as_are_kept() -> None:
    rig = CertificateRig(validityDays=3650, overlapSeconds=60)
    await rig.settle()
    shown = rig.leaf()
    for number in range(MOST_FORMER + 2):
        _rotate(rig, f"word-{number}")
        await rig.settle()
        rig.now += timedelta(minutes=2)
        await rig.settle()

    assert f"Secret main-authority has {MOST_FORMER} former authorities" in (await rig.plan()).invalid
    assert _loads(rig.trusted()) == MOST_FORMER + 1 and accepts(rig.trusted(), shown, rig.now)


# A clock that was ahead -----------------------------------------------------------------------------------------------
@pytest.mark.fault("operator-clock-wrong")
async def test_certificates_that_are_not_valid_yet_are_issued_again() -> None:
    """The operator ran for a while on a machine whose clock was ahead, and renewed them there."""
    rig = CertificateRig()
    await rig.settle()
    rig.now += 310 * DAY
    await rig.settle()
    early = rig.leaf()
    rig.now = NOW + DAY
    assert not accepts(rig.trusted(), early, rig.now)
    await rig.settle()

    assert accepts(rig.trusted(), rig.leaf(), rig.now)


async def test_a_next_authority_that_is_not_valid_yet_is_replaced() -> None:
    rig = CertificateRig()
    await rig.settle()
    rig.now += 1_700 * DAY
    assert AuthorityStep.ADD in await rig.settle()
    rig.now = NOW + DAY
    assert "the next authority in Secret main-authority is valid only from" in (await rig.plan()).invalid
    assert await rig.settle() == [AuthorityStep.ADD]
    rig.now += 8 * DAY
    assert await rig.settle() == [AuthorityStep.SWITCH]

    assert accepts(rig.trusted(), rig.leaf(), rig.now)


async def test_an_authority_that_is_not_valid_yet_is_replaced_by_the_word_of_a_person_alone() -> None:
    """A clock that is behind makes every authority look like that, and the clients of a good one would be lost."""
    rig = CertificateRig(listener=OF_USERS)
    rig.now = NOW + 1_000 * DAY
    await rig.settle()
    made = rig.kubernetes.text("main-authority", "ca.crt")
    rig.now = NOW
    planned = await rig.plan()
    assert await rig.settle() == [] and rig.kubernetes.text("main-authority", "ca.crt") == made
    for secret in ("main-authority", "main-clients-authority"):
        assert f"the authority in Secret {secret} is valid only from 2028-" in planned.invalid
    assert "--overwrite stratalog.dev/rotate-ca=WORD" in planned.invalid
    _rotate(rig, "corrected")
    assert await rig.settle() == [AuthorityStep.ADD, AuthorityStep.SWITCH]

    assert accepts(rig.trusted(), rig.leaf(), rig.now) and (await rig.plan()).invalid == ""


@pytest.mark.parametrize("is_rotating", [False, True])
async def test_a_clock_that_is_behind_replaces_no_authority(is_rotating: bool) -> None:
    rig = CertificateRig()
    await rig.settle()
    if is_rotating:
        _rotate(rig, "june")
        await rig.settle()
    before = rig.kubernetes.text("main-authority", "ca.crt")
    rig.now = NOW - 5_000 * DAY
    await rig.settle()
    assert rig.kubernetes.text("main-authority", "ca.crt") == before
    rig.now = NOW + DAY
    await rig.settle()

    assert rig.kubernetes.text("main-authority", "ca.crt") == before
    assert accepts(rig.trusted(), rig.leaf(), rig.now) and (await rig.plan()).invalid == ""


# The clock of the API server ------------------------------------------------------------------------------------------
@pytest.mark.fault("operator-clock-wrong")
@pytest.mark.parametrize("ahead", [301, -301])
async def test_nothing_is_issued_or_replaced_while_the_clock_is_not_that_of_the_api_server(ahead: int) -> None:
    rig = CertificateRig()
    await rig.settle()
    rig.now += 3_000 * DAY
    rig.clock_ahead_seconds = ahead
    planned = await rig.plan()
    assert planned.offer.actions == [] and planned.expires.startswith("2027-01-01")
    assert f"is 301 s {'ahead of' if ahead > 0 else 'behind'} that of the Kubernetes API server" in planned.waits
    rig.clock_ahead_seconds = ahead // 2
    assert (await rig.plan()).offer.actions


async def test_the_cluster_says_that_the_clocks_differ() -> None:
    rig = CertificateRig()
    await rig.settle()
    rig.clock_ahead_seconds = 1_000_000
    status: Any = plan(await rig.observe()).statuses["StorageCluster", "main"]

    (told,) = [one for one in status.conditions if one.type == "Reconciled"]
    assert (told.status, told.reason) == ("False", "Waiting") and "1,000,000 s ahead" in told.message


def test_no_password_is_renewed_by_its_age_while_the_clocks_differ() -> None:
    one = users_world(storage_user(authentication={"type": "scram-sha-512", "rotateAfterDays": 30}))
    one.kept.edit_secret("alice", rotated_at="2012-01-01T00:00:00Z")

    def renewed(ahead: int) -> bool:
        seen = replace(one.observe(), clock_ahead_seconds=ahead)
        put = [action for action in plan(seen).actions if isinstance(action, PutPassword)]
        return any(action.source.value == "generated" for action in put)

    assert renewed(0) and not renewed(86_400)


async def test_a_users_certificate_waits_for_the_clock_and_one_that_is_not_valid_yet_is_issued_again() -> None:
    rig = CertificateRig(listener=OF_USERS)
    await rig.settle()
    seen = await rig.observe()
    assert isinstance(seen.certificates, SeenCertificates) and seen.certificates.clients is not None
    issuer = seen.certificates.clients.issuer
    assert issuer is not None
    user = storage_user(authentication={"type": "tls"})

    def secret(not_before: str) -> SeenUserSecret:
        kept = SeenUserCertificate(issuer.fingerprint, "CN=alice", "2027-01-01T00:00:00Z", not_before)
        return SeenUserSecret("uid", "1", is_ours=True, certificate=kept)

    now, later = seen.now, "2026-06-01T00:00:00Z"
    assert plan_user_certificate(seen, user, secret(now)).action is None
    assert isinstance(plan_user_certificate(seen, user, secret(later)).action, PutCertificate)
    waits = plan_user_certificate(replace(seen, clock_ahead_seconds=900), user, secret(later))
    assert waits.action is None and "900 s ahead" in waits.waits


@asynccontextmanager
async def _server(date: str) -> AsyncIterator[Kubernetes]:
    """An API server that says this time."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": date} if date else {})

    application = web.Application()
    application.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with ApiClient(Configuration(host=f"http://{host}:{port}")) as client:
            yield Kubernetes(client)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("hours", [-20, 0, 20])
async def test_each_answer_of_the_api_server_says_how_far_the_clock_is_ahead(hours: int) -> None:
    told = datetime.now(UTC) - timedelta(hours=hours)
    async with _server(format_datetime(told, usegmt=True)) as kubernetes:
        await kubernetes.ask("GET", path_of("Secret", "data", "main-ca"))

    assert round(kubernetes.clock_ahead_seconds / 3600) == hours


@pytest.mark.parametrize("date", ["yesterday", "Mon, 99 Nov 2026 19:00:00 GMT"])
async def test_a_time_of_the_api_server_that_cannot_be_read_says_nothing(date: str) -> None:
    async with _server(date) as kubernetes:
        await kubernetes.ask("GET", path_of("Secret", "data", "main-ca"))

    assert kubernetes.clock_ahead_seconds == 0
