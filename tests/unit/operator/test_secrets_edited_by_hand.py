"""Secrets of certificates that others changed: what is in them is never more than a certificate that is issued again,
or words in a condition. No pass over the cluster ends because of it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from stratalog.tls.issuing import certificate_builder, key_text
from stratalog_operator.kube.certificate_files import Pair, issue, make_authority, trusted_texts
from stratalog_operator.observe.certificates import read_certificates
from stratalog_operator.observe.known_users import seen_certificate
from stratalog_operator.plan.actions import AuthorityStep, PutCertificate
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.declared.user_certificates import plan_user_certificate
from stratalog_operator.plan.observed import Observed, Seen, SeenAuthority, SeenCertificates, SeenIssuer, SeenUserSecret
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.names import ANNOTATION_ROTATED_AT, ANNOTATION_ROTATED_FOR
from stratalog_operator.specs.notes import due_by_age, time_of_note
from support.operator_users import storage_user
from support.secret_store import Secrets

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = make_authority("main", NOW, 100)
ALICE = issue(AUTHORITY, "alice", (), NOW, 95)
_P256 = bytes.fromhex("06082a8648ce3d030107")
_UNKNOWN_CURVE = bytes.fromhex("06082a8648ce3d030163")
_VERSION_3, _VERSION_8 = bytes.fromhex("a003020102"), bytes.fromhex("a003020107")
_UNKNOWN_KEY = bytes.fromhex("3011 020100 3005 0603 2a0304 0405 0403616263".replace(" ", ""))


def _pem(kind: str, der: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(der).decode()}-----END {kind}-----\n"


def _changed(pem: str, before: bytes, after: bytes) -> str:
    der = x509.load_pem_x509_certificate(pem.encode()).public_bytes(serialization.Encoding.DER)
    assert before in der
    return _pem("CERTIFICATE", der.replace(before, after, 1))


@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        (ALICE.certificate, _pem("PRIVATE KEY", _UNKNOWN_KEY)),
        (_changed(ALICE.certificate, _P256, _UNKNOWN_CURVE), ALICE.key),
        (_changed(ALICE.certificate, _VERSION_3, _VERSION_8), ALICE.key),
    ],
    ids=["key of an unknown kind", "unknown curve", "unknown version"],
)
def test_a_certificate_that_the_library_does_not_know_counts_as_not_there(certificate: str, key: str) -> None:
    assert seen_certificate(ALICE.certificate, ALICE.key, AUTHORITY.certificate) is not None
    assert seen_certificate(certificate, key, AUTHORITY.certificate) is None


@pytest.mark.parametrize(
    ("noted", "due"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-31T00:00:00+00:00"),
        ("2026-01-01", "2026-01-31T00:00:00+00:00"),
        ("2026-01-01T05:00:00+05:00", "2026-01-31T00:00:00+00:00"),
        ("yesterday", None),
        ("", None),
        ("0999-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+05:00", None),
        ("9999-12-31T00:00:00Z", None),
    ],
)
def test_a_noted_time_is_read_in_utc_or_counts_as_unknown(noted: str, due: str | None) -> None:
    found = due_by_age(noted, 30)
    assert (None if found is None else found.isoformat()) == due
    assert noted.startswith("9999") or (time_of_note(noted) is None) == (due is None)


def test_a_note_without_a_zone_on_the_secret_of_a_user_ends_no_pass() -> None:
    spec = {"listeners": [_INTERNAL, {**_USERS, "authentication": {"type": "tls"}}]}
    issuer = SeenIssuer("issuer", "2030-01-01T00:00:00Z", pem=AUTHORITY.certificate)
    certificates = SeenCertificates(SeenAuthority("1", issuer), is_published=True, clients=SeenAuthority("2", issuer))
    seen = replace(_seen(NOW, **spec), certificates=certificates)
    user = storage_user(authentication={"type": "tls", "rotateAfterDays": 30})
    kept = seen_certificate(ALICE.certificate, ALICE.key, AUTHORITY.certificate)
    assert kept is not None
    secret = SeenUserSecret(
        "uid", "1", is_ours=True, rotated_at="2025-12-01", certificate=replace(kept, issuer=issuer.fingerprint)
    )
    assert isinstance(plan_user_certificate(seen, user, secret).action, PutCertificate)
    secret = replace(secret, rotated_at="2025-12-31")
    assert plan_user_certificate(seen, user, secret).rotates_at == "2026-01-30T00:00:00Z"


# The authority --------------------------------------------------------------------------------------------------------
_INTERNAL = {"name": "internal", "port": 9092}
_USERS = {"name": "users", "port": 9093, "tls": True}


def _seen(now: datetime, **spec: Any) -> Observed:
    given = {"meta": {"etcd": {}}, "listeners": [_INTERNAL, _USERS], **spec}
    whole = Seen("main", "uid-of-main", StorageClusterSpec.model_validate(given), StorageClusterStatus())
    return Observed("data", now.strftime("%Y-%m-%dT%H:%M:%SZ"), whole)


def _authority(kubernetes: Secrets, notes: dict[str, str], **texts: str) -> None:
    kubernetes.held["main-authority"] = {
        "metadata": {
            "name": "main-authority",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": notes,
            "ownerReferences": [{"uid": "uid-of-main"}],
        },
        "data": {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }


async def _step(kubernetes: Secrets, now: datetime) -> AuthorityStep:
    seen = _seen(now)
    seen = replace(seen, certificates=await read_certificates(kubernetes, cluster_of(seen), seen.now))
    (action,) = plan_certificates(seen).offer.actions
    return action.step  # type: ignore[union-attr]  # the only action that it plans


@pytest.mark.parametrize("noted", [None, "yesterday", "2026-03-01", "9999-01-01T00:00:00Z", "1970-01-01T00:00:00Z"])
async def test_the_next_authority_is_trusted_for_the_overlap_whatever_a_note_says(noted: str | None) -> None:
    added = NOW + timedelta(days=10)
    present, following = make_authority("main", NOW, 1825), make_authority("main next", added, 1825)
    notes = {ANNOTATION_ROTATED_FOR: "word", **({} if noted is None else {ANNOTATION_ROTATED_AT: noted})}
    kubernetes = Secrets()
    _authority(
        kubernetes,
        notes,
        ca_crt=present.certificate,
        ca_key=present.key,
        next_crt=following.certificate,
        next_key=following.key,
    )
    week = timedelta(days=7)
    assert await _step(kubernetes, added + week - timedelta(seconds=1)) is AuthorityStep.KEEP
    assert await _step(kubernetes, added + week) is AuthorityStep.SWITCH


def _of_rsa() -> Pair:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "theirs")])
    builder = certificate_builder(name, name, key.public_key(), NOW, NOW + timedelta(days=100))  # type: ignore[arg-type]  # RSA
    made = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    return Pair(made.public_bytes(serialization.Encoding.PEM).decode(), key_text(key).decode())  # type: ignore[arg-type]  # RSA


@pytest.mark.parametrize("made", [_of_rsa, lambda: ALICE], ids=["a key of RSA", "no authority"])
async def test_what_cannot_issue_is_said_and_not_used_as_the_authority(made: Callable[[], Pair]) -> None:
    pair, kubernetes = made(), Secrets()
    _authority(kubernetes, {}, ca_crt=pair.certificate, ca_key=pair.key)
    seen = _seen(NOW)
    seen = replace(seen, certificates=await read_certificates(kubernetes, cluster_of(seen), seen.now))
    planned = plan_certificates(seen)
    assert planned.offer.actions == [] and "has no authority that can be read" in planned.invalid


def test_authorities_without_a_last_line_end_stay_readable_together() -> None:
    kubernetes, following = Secrets(), make_authority("next", NOW, 100)
    _authority(kubernetes, {}, ca_crt=AUTHORITY.certificate.rstrip("\n"), next_crt=following.certificate)
    trusted = trusted_texts(kubernetes.held["main-authority"], NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted)
    assert context.cert_store_stats()["x509_ca"] == 2
