"""The client of SCRAM: the example of the RFC, logins at our own server, and servers that lie."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.sasl.scram import (
    ScramExchange,
    WrongCredentials,
    credential_from,
    salted,
    stand_in_credential,
)
from stratalog.machines.sasl.scram_client import MOST_ITERATIONS, NotTheServer, ScramClient
from stratalog.machines.sasl.scram_text import parse_client_first
from stratalog.model.scram import ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NONCE = b"rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def client(password: str = "pencil") -> ScramClient:
    return ScramClient(SHA_256, "user", password, NONCE)


def server(scram: ScramClient, mechanism: ScramMechanism, password: str) -> ScramExchange:
    kept = credential_from(mechanism, salted(mechanism, password, b"salty", 4_096), b"salty", 4_096)
    first = parse_client_first(scram.first)
    stand_in = stand_in_credential(mechanism, first.name, b"s" * 32, 4_096)
    return ScramExchange(mechanism, first, kept, stand_in, b"server-nonce-of-24-bytes")


def test_the_example_of_rfc_7677() -> None:
    scram = client()
    assert scram.first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.answer(CHALLENGE) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@settings(max_examples=20)
@given(
    st.sampled_from(ScramMechanism),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
)
def test_it_logs_in_at_our_own_server(mechanism: ScramMechanism, name: str, password: str) -> None:
    scram = ScramClient(mechanism, name, password, NONCE)
    exchange = server(scram, mechanism, password)
    assert exchange.name == name
    scram.check(exchange.finish(scram.answer(exchange.challenge)))


def test_a_wrong_password_proves_nothing() -> None:
    scram = ScramClient(SHA_512, "alice", "wrong", NONCE)
    exchange = server(scram, SHA_512, "right")
    with pytest.raises(WrongCredentials):
        exchange.finish(scram.answer(exchange.challenge))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"e=other-error",
        b"r=another-nonce,s=c2FsdA==,i=4096",
        b"r=" + NONCE + b",s=c2FsdA==,i=4096",  # the server adds nothing: a replay could be answered
        b"r=" + NONCE + b"x,s=,i=4096",
        b"r=" + NONCE + b"x,s=c2FsdA==,i=4095",
        b"r=" + NONCE + b"x,s=c2FsdA==,i=%d" % (MOST_ITERATIONS + 1),
        b"r=" + NONCE + b"x,s=c2F,i=4096",
        b"m=ext,r=" + NONCE + b"x,s=c2FsdA==,i=4096",
    ],
)
def test_a_challenge_that_is_unsafe_is_not_answered(challenge: bytes) -> None:
    with pytest.raises(NotTheServer):
        client().answer(challenge)


@pytest.mark.parametrize("final", [b"", b"v=", b"v=AAAA", b"e=unknown-user", b"v=!", b"x"])
def test_a_server_that_does_not_know_the_user_is_not_believed(final: bytes) -> None:
    scram = client()
    scram.answer(CHALLENGE)
    with pytest.raises(NotTheServer):
        scram.check(final)


def test_a_server_that_skips_the_proof_is_not_believed() -> None:
    with pytest.raises(NotTheServer, match="before it asked"):
        client().check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
