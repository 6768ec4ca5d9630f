"""What reaches OpenSSL of the first bytes that a client sends, and which hellos are refused before that."""

from __future__ import annotations

import random
import ssl

import pytest

from stratalog.event_loop.tls_hello import MOST_HELLO_BYTES, MOST_RECORDS, ClientHello, HelloRefused
from support.client_hellos import FFDHE8192, P_256, X25519, client_hello, in_records, real_hello, server_name

ORDINARY = client_hello([X25519, P_256], [X25519])
DEAR = client_hello([FFDHE8192], [FFDHE8192])
CHANGE_CIPHER = b"\x14\x03\x03\0\x01\x01"
ENCRYPTED = b"\x17\x03\x03\0\x20" + b"e" * 32


def test_a_hello_of_openssl_passes_as_it_is_wherever_the_network_cuts_it() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        sent = real_hello(context)
        for cut in range(1, len(sent)):
            gate = ClientHello()
            assert gate.receive(sent[:cut]) == b"", "a part of a hello does not reach OpenSSL"
            assert gate.receive(sent[cut:]) == sent


def test_all_bytes_of_a_handshake_pass_in_their_order_however_they_arrive() -> None:
    chance = random.Random(1)
    of_tls_1_3 = in_records(ORDINARY, 100) + CHANGE_CIPHER + in_records(ORDINARY) + ENCRYPTED * 3
    of_tls_1_2 = (
        in_records(ORDINARY)
        + in_records(b"\x0b\0\0\x03abc" + b"\x10\0\0\x02ab")
        + CHANGE_CIPHER
        + b"\x16\x03\x03\0\x20" * 9
    )
    for sent in (of_tls_1_3, of_tls_1_2):
        for _ in range(100):
            gate, passed, at = ClientHello(), b"", 0
            while at < len(sent):
                size = chance.choice((1, 3, 5, 60, 700))
                passed += gate.receive(sent[at : at + size])
                at += size
            assert passed + gate.rest() == sent


def test_what_is_no_tls_passes_at_once_for_the_error_of_openssl() -> None:
    for sent in (
        b"GET / HTTP/1.1",
        b"\0\0\0\x0a\0\x12",
        b"\xff" * 10,
        b"\x16\x02\x01\0\x05hello",
        b"\x16\x03\x01\xff\xff",
    ):
        assert ClientHello().receive(sent) == sent


@pytest.mark.parametrize("size", [MOST_HELLO_BYTES + 1, 131_396, 0xFF_FF_FF])
def test_a_hello_that_announces_too_much_is_refused_by_its_first_bytes(size: int) -> None:
    with pytest.raises(HelloRefused, match=f"announces {size} bytes"):
        ClientHello().receive(b"\x16\x03\x01\0\x04\x01" + size.to_bytes(3, "big"))


def test_a_name_of_a_server_of_64_kib_is_refused() -> None:
    with pytest.raises(HelloRefused, match="announces"):
        ClientHello().receive(in_records(client_hello([P_256], [P_256], more=server_name(65_000))))
    assert ClientHello().receive(in_records(client_hello([P_256], [P_256], more=server_name(255))))


def test_a_hello_in_many_records_passes_and_one_in_too_many_is_refused() -> None:
    assert len(ORDINARY) < MOST_RECORDS
    sent = in_records(ORDINARY, 1)
    assert ClientHello().receive(sent) == sent
    with pytest.raises(HelloRefused, match=f"more than {MOST_RECORDS} records"):
        ClientHello().receive(in_records(client_hello([P_256], [P_256], more=server_name(MOST_RECORDS)), 1))
    with pytest.raises(HelloRefused, match=f"more than {MOST_RECORDS} records"):
        ClientHello().receive(in_records(ORDINARY) + ENCRYPTED * MOST_RECORDS)


@pytest.mark.parametrize("shares", [[FFDHE8192], [X25519, FFDHE8192], [FFDHE8192, P_256]])
def test_a_key_over_a_finite_field_is_refused_wherever_it_stands(shares: list[int]) -> None:
    with pytest.raises(HelloRefused, match="finite field"):
        ClientHello().receive(in_records(client_hello(shares, shares)))


def test_a_client_that_could_also_use_a_finite_field_passes() -> None:
    """As OpenSSL 3.0 does by default."""
    sent = in_records(client_hello([X25519, P_256, FFDHE8192], [X25519]))
    assert ClientHello().receive(sent) == sent


@pytest.mark.parametrize(
    "between",
    [
        b"",
        CHANGE_CIPHER,
        ENCRYPTED,
        b"\x17\x03\x03\0\0",
        b"\x16\x03\x03\0\0",
        b"\x15\x03\x03\0\0",
        b"\x15\x03\x03\0\x02\x01\0",
    ],
)
def test_a_second_hello_is_checked_as_the_first_is_whatever_comes_between(between: bytes) -> None:
    """OpenSSL skips early data, empty records and warnings while it waits for one."""
    first = in_records(client_hello([FFDHE8192], [], is_early=True)) + between
    gate = ClientHello()
    assert gate.receive(first) == first
    with pytest.raises(HelloRefused, match="finite field"):
        gate.receive(in_records(DEAR))


def test_two_hellos_in_one_record_are_both_checked() -> None:
    with pytest.raises(HelloRefused, match="finite field"):
        ClientHello().receive(in_records(client_hello([FFDHE8192], []) + DEAR))


def test_a_record_in_the_middle_of_a_hello_is_refused() -> None:
    """Else it would be held, and the next one, too."""
    with pytest.raises(HelloRefused, match="in the middle"):
        ClientHello().receive(in_records(ORDINARY[:50]) + ENCRYPTED)


def test_a_hello_whose_sizes_contradict_each_other_is_refused() -> None:
    with pytest.raises(HelloRefused, match="cannot be read"):
        ClientHello().receive(in_records(b"\x01\0\0\x30" + ORDINARY[4:52]))
    chance = random.Random(2)
    for _ in range(2_000):
        odd = bytearray(ORDINARY)
        for _ in range(chance.randint(1, 4)):
            odd[chance.randrange(4, len(odd))] = chance.randrange(256)
        gate = ClientHello()
        try:
            passed = gate.receive(in_records(bytes(odd)))
        except HelloRefused:
            continue
        assert passed == in_records(bytes(odd))


def test_little_is_held_of_a_client_that_goes_on_for_ever() -> None:
    gate = ClientHello()
    gate.receive(in_records(b"\x01" + MOST_HELLO_BYTES.to_bytes(3, "big") + bytes(MOST_HELLO_BYTES - 1)))
    gate.receive(b"\x16\x03\x01\x40\0" + bytes(16_000))
    assert len(gate._held) + len(gate._message) < 34 << 10
