"""Logins by SCRAM: the examples of the RFCs, a client of another library, and clients that lie."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.sasl.scram import (
    ScramExchange,
    WrongCredentials,
    credential_from,
    is_password,
    salt_from,
    salted,
    stand_in_credential,
)
from stratalog.machines.sasl.scram_text import LONGEST_MESSAGE, parse_client_final, parse_client_first
from stratalog.model.errors import InvalidRequest
from stratalog.model.scram import ScramCredential, ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NONCE = b"server-nonce-of-24-bytes"
SECRET = b"s" * 32


def credential_of(password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = b"salty") -> ScramCredential:
    return credential_from(mechanism, salted(mechanism, password, salt, 4_096), salt, 4_096)


class Client:
    """The one of aiokafka, message by message."""

    def __init__(self, name: str, password: str, mechanism: ScramMechanism = SHA_256) -> None:
        self._steps = ScramAuthenticator(
            loop=None,
            sasl_plain_password=password,
            sasl_plain_username=name,
            sasl_mechanism=mechanism.mechanism_name,
        )._authenticator
        self.first: bytes = next(self._steps)[0]

    def final(self, challenge: bytes) -> bytes:
        message: bytes = self._steps.send(challenge)[0]
        return message

    def accepts(self, message: bytes) -> bool:
        """Whether the server has proven to know the user's keys. Raises: ValueError where it has not."""
        with pytest.raises(StopIteration):
            self._steps.send(message)
        return True


def exchange(
    client: Client, credential: ScramCredential | None, mechanism: ScramMechanism = SHA_256, name: str = "alice"
) -> ScramExchange:
    stand_in = stand_in_credential(mechanism, name, SECRET, 4_096)
    return ScramExchange(mechanism, parse_client_first(client.first), credential, stand_in, NONCE)


def test_the_example_of_rfc_7677() -> None:
    credential = credential_of("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    first = parse_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    login = ScramExchange(SHA_256, first, credential, credential, b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert login.challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    answer = login.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", ScramMechanism)
@settings(max_examples=20, deadline=None)
@given(
    name=st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20),
    password=st.text(min_size=1, max_size=20),
)
def test_a_client_that_knows_the_password_is_let_in_and_sees_that_the_server_knows_its_keys(
    mechanism: ScramMechanism, name: str, password: str
) -> None:
    client = Client(name, password, mechanism)
    assert parse_client_first(client.first).name == name
    login = exchange(client, credential_of(password, mechanism), mechanism)
    assert client.accepts(login.finish(client.final(login.challenge)))


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(mechanism: ScramMechanism) -> None:
    answers = []
    for credential in (credential_of("right", mechanism), None):
        client = Client("alice", "wrong", mechanism)
        login = exchange(client, credential, mechanism)
        with pytest.raises(WrongCredentials) as refused:
            login.finish(client.final(login.challenge))
        answers.append(str(refused.value))
    assert answers[0] == answers[1]


def test_an_unknown_user_has_the_same_salt_each_time_and_another_one_in_another_cluster() -> None:
    one = stand_in_credential(SHA_256, "alice", SECRET, 4_096)
    assert one == stand_in_credential(SHA_256, "alice", SECRET, 4_096)
    assert one.salt != stand_in_credential(SHA_256, "bob", SECRET, 4_096).salt
    assert one.salt != stand_in_credential(SHA_256, "alice", b"other", 4_096).salt
    assert one.salt != stand_in_credential(SHA_512, "alice", SECRET, 4_096).salt


def test_the_salt_of_an_unknown_user_looks_like_that_of_a_user() -> None:
    """Both are numbers of 130 random bits in 36 digits, as Kafka's tools make them."""
    shown = {len(stand_in_credential(SHA_256, f"user-{n}", SECRET, 4_096).salt) for n in range(300)}
    made = {len(salt_from(hashlib.sha256(b"%d" % n).digest())) for n in range(300)}
    assert shown | made <= {23, 24, 25, 26} and {25, 26} <= shown & made


def test_no_login_is_finished_twice() -> None:
    client = Client("alice", "right")
    login = exchange(client, credential_of("right"))
    final = client.final(login.challenge)
    login.finish(final)
    with pytest.raises(InvalidRequest, match="over"):
        login.finish(final)


def test_what_was_sent_to_one_login_opens_no_other() -> None:
    client = Client("alice", "right")
    credential = credential_of("right")
    final = client.final(exchange(client, credential).challenge)
    stand_in = stand_in_credential(SHA_256, "alice", SECRET, 4_096)
    replayed = ScramExchange(SHA_256, parse_client_first(client.first), credential, stand_in, b"another-nonce")
    with pytest.raises(InvalidRequest, match="another login"):
        replayed.finish(final)


def test_a_nonce_that_is_only_the_clients_is_refused() -> None:
    client = Client("alice", "right")
    login = exchange(client, credential_of("right"))
    final = client.final(login.challenge).replace(NONCE, b"")
    with pytest.raises(InvalidRequest, match="another login"):
        login.finish(final)


@pytest.mark.parametrize("channel", [b"eSws", b"", b"cD10bHMtdW5pcXVlLCw="])
def test_a_client_that_saw_another_header_is_refused(channel: bytes) -> None:
    """A proxy could have removed its request for channel binding."""
    client = Client("alice", "right")
    login = exchange(client, credential_of("right"))
    with pytest.raises(InvalidRequest, match="another login"):
        login.finish(client.final(login.challenge).replace(b"c=biws", b"c=" + channel))


@pytest.mark.parametrize("proof", [b"", b"AAAA", b64encode(b"x" * 64)])
def test_a_proof_of_another_length_is_wrong(proof: bytes) -> None:
    client = Client("alice", "right")
    login = exchange(client, credential_of("right"))
    final = client.final(login.challenge)
    with pytest.raises(WrongCredentials):
        login.finish(final[: final.index(b"p=") + 2] + proof)


def test_a_longer_proof_that_begins_with_the_right_one_is_wrong() -> None:
    client = Client("alice", "right")
    login = exchange(client, credential_of("right"))
    head, _, proof = client.final(login.challenge).rpartition(b"p=")
    with pytest.raises(WrongCredentials):
        login.finish(head + b"p=" + b64encode(b64decode(proof) + b"\0\0\0"))


def test_a_client_that_wants_to_act_as_another_user_is_refused() -> None:
    client = Client("alice", "right")
    first = parse_client_first(client.first.replace(b"n,,", b"n,a=bob,"))
    credential = credential_of("right")
    login = ScramExchange(SHA_256, first, credential, credential, NONCE)
    final = client.final(login.challenge).replace(b"c=biws", b"c=" + b64encode(b"n,a=bob,"))
    with pytest.raises(WrongCredentials):
        login.finish(final)


def test_a_delegation_token_is_no_password() -> None:
    client = Client("alice", "right")
    first = parse_client_first(client.first + b",tokenauth=true")
    credential = credential_of("right")
    login = ScramExchange(SHA_256, first, credential, credential, NONCE)
    with pytest.raises(WrongCredentials):
        login.finish(client.final(login.challenge))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=al,ice,r=x",
        b"n,,n=al=2Dice,r=x",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=alice,r=x y",
        b"n,,n=alice,r=x,",
        b"n,,n=al\x00ice,r=x",
        "n,,n=ali\u00e7e,r=x".encode(),
        b"n,,n=" + b"a" * LONGEST_MESSAGE + b",r=x",
    ],
)
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_client_first(message)
    assert b"alice" not in str(refused.value).encode()


@pytest.mark.parametrize(
    "message", [b"", b"c=biws,r=x", b"c=biws,r=x,p=!", b"c=b,r=x,p=AAAA", b"c=biws,r=x,p=A", b"c=biws,r=x,p=AAAA,x=y"]
)
def test_what_is_no_final_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_client_final(message)


def test_extensions_and_an_escaped_name_are_read() -> None:
    first = parse_client_first(b"n,a=a=2Cb,m=x,n=a=2Cb=3Dc,r=nonce,tokenauth=false,other=y")
    assert (first.name, first.authorization_id, first.nonce) == ("a,b=c", "a,b", b"nonce")
    assert first.extensions == {"tokenauth": "false", "other": "y"}
    assert first.header + first.bare == b"n,a=a=2Cb,m=x,n=a=2Cb=3Dc,r=nonce,tokenauth=false,other=y"


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_whatever_comes_first_is_read_or_refused(message: bytes) -> None:
    for parse in (parse_client_first, parse_client_final):
        try:
            parse(message)
        except InvalidRequest:
            continue


@pytest.mark.parametrize(
    ("iterations", "password", "salt"),
    [(4_095, 32, b"s"), (16_385, 32, b"s"), (4_096, 31, b"s"), (4_096, 32, b"")],
)
def test_what_gives_no_safe_credential_is_refused(iterations: int, password: int, salt: bytes) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        credential_from(SHA_256, b"p" * password, salt, iterations)


def test_a_password_is_compared_with_what_is_kept_of_it() -> None:
    credential = credential_of("right", SHA_512)
    assert is_password(SHA_512, credential, "right")
    assert not is_password(SHA_512, credential, "wrong")
    assert not is_password(SHA_512, stand_in_credential(SHA_512, "x", SECRET, 4_096), "right")


def test_no_key_is_in_the_text_of_a_credential() -> None:
    assert repr(credential_of("right")) == "ScramCredential(iterations=4096)"
