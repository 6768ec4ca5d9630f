"""Listeners as users write them, and what fits together: `listeners` beside `advertised.listeners`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.model.listeners import (
    INTERNAL,
    MOST_LISTENERS,
    Listener,
    SecurityProtocol,
    advertised_address,
    parse_listeners,
    why_not_registered,
)
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings

OUTSIDE = Listener("outside", "0.0.0.0", 9094)


def loaded(**settings: str) -> ProcessSettings:
    return load_process_settings(assignments=[f"{key.replace('_', '.')}={value}" for key, value in settings.items()])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("  ", ()),
        ("host:9092", (Listener(INTERNAL, "host", 9092),)),
        ("internal://host:9092", (Listener(INTERNAL, "host", 9092),)),
        ("outside://0.0.0.0:9094", (OUTSIDE,)),
        (
            "pod.svc:9092, outside://1.2.3.4:30102",
            (Listener(INTERNAL, "pod.svc", 9092), Listener("outside", "1.2.3.4", 30102)),
        ),
        ("v6://[fd00::1]:9094", (Listener("v6", "fd00::1", 9094),)),
        ("v6://fd00::1:9094", (Listener("v6", "fd00::1", 9094),)),
        ("0://h:0", (Listener("0", "h", 0),)),
    ],
)
def test_listeners_are_read_as_they_are_written(text: str, found: tuple[Listener, ...]) -> None:
    assert parse_listeners(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (",", "HOST:PORT"),
        ("a:1,", "HOST:PORT"),
        ("a:1,b:2", "internal is set twice"),
        ("out://a:1,out://b:2", "out is set twice"),
        ("out://a:1,out://a:1", "out is set twice"),
        ("Out://a:1", "small letters"),
        ("-out://a:1", "small letters"),
        ("out-://a:1", "small letters"),
        ("SASL_SSL://a:1", "write clients://a:1, and listener.security.protocol.map=clients:SASL_SSL"),
        ("OUT_SIDE://a:1", "write out-side://a:1"),
        ("o" * 64 + "://a:1", "small letters"),
        ("ou t://a:1", "small letters"),
        ("außen://a:1", "small letters"),
        ("://a:1", "small letters"),
        ("out://", "HOST:PORT"),
        ("out://a", "HOST:PORT"),
        ("out://a:65536", "a port from 0 to 65535"),
        ("out://a:١", "HOST:PORT"),
        ("out://user@a:1", "the host is a name"),
        ("out://a:1/path", "HOST:PORT"),
        ("out://in://a:1", "without a listener's name"),
        ("out://a:1\nin://b:2", "HOST:PORT"),
        ("out://" + "a" * 5_000 + ":1", "at most 4096 characters"),
        (",".join(f"l{number}://a:1" for number in range(MOST_LISTENERS + 2)), "at most 8 listeners beside internal"),
    ],
)
def test_what_is_not_a_listener_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_listeners(text)


@given(st.text(alphabet=":/,.[]@%?#-_aZ09 \n\0ß", max_size=80))
def test_whatever_is_written_is_read_or_refused_in_words(text: str) -> None:
    try:
        found = parse_listeners(text)
    except ValueError as refused:
        assert "expected" in str(refused) or "is set twice" in str(refused)
    else:
        assert len({one.name for one in found}) == len(found)
        assert all(one.host and 0 <= one.port <= 65_535 for one in found)


@pytest.mark.fault("settings-node-honour-shards")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners": "0.0.0.0:9094"}, "the one named internal is where --listen says"),
        ({"listeners": "internal://0.0.0.0:9094"}, "the one named internal is where --listen says"),
        ({"listeners": "outside://0.0.0.0:9094"}, "add outside://HOST:PORT to advertised.listeners"),
        ({"listeners": "outside://[::]:9094", "advertised_listeners": "h:1"}, "add outside://HOST:PORT to advertised"),
        ({"advertised_listeners": "outside://h:1"}, "add outside://HOST:PORT to listeners"),
        ({"listeners": "out://h:1", "advertised_listeners": "outside://h:1"}, "add outside://HOST:PORT to listeners"),
        ({"listeners": "out://h:1", "advertised_listeners": "out://0.0.0.0:1"}, "an address that means all of them"),
    ],
)
def test_listeners_that_no_client_could_use_are_refused_at_the_start(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        loaded(**settings)


def test_what_is_not_advertised_is_reported_as_it_listens_and_port_0_is_the_port_there() -> None:
    settings = loaded(
        listeners="near://10.0.0.1:9094,far://0.0.0.0:9095", advertised_listeners="pod:9092,far://public:0"
    )
    listening = (Listener(INTERNAL, "0.0.0.0", 40_000), *settings.further_listeners)
    told = [advertised_address(one, settings.advertised_addresses) for one in listening]
    assert told == [
        Listener(INTERNAL, "pod", 9092),
        Listener("near", "10.0.0.1", 9094),
        Listener("far", "public", 9095),
    ]
    assert settings.advertised(("0.0.0.0", 40_000)) == ("pod", 9092)
    assert loaded(listeners="near://10.0.0.1:9094").advertised(("10.0.0.1", 7)) == ("10.0.0.1", 7)


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        ((Listener(INTERNAL, "h", 1),), "none may be internal"),
        ((Listener("a", "h", 1), Listener("a", "g", 1)), "a unique name"),
        ((Listener("A b", "h", 1),), "a unique name"),
        ((Listener("a", "h", 0),), "host and port that others connect to"),
        ((Listener("a", "h", 65_536),), "host and port that others connect to"),
        ((Listener("a", "h h", 1),), "host and port that others connect to"),
        ((Listener("a", "h" * 254, 1),), "host and port that others connect to"),
        (tuple(Listener(f"l{number}", "h", 1) for number in range(9)), "8 are the most"),
    ],
)
def test_what_a_node_says_of_its_listeners_is_not_taken_on_trust(listeners: tuple[Listener, ...], words: str) -> None:
    assert words in (why_not_registered(listeners) or "")
    assert why_not_registered((Listener("outside", "h", 1), Listener("v6", "fd00::1", 1))) is None


# What listeners ask of their clients ---------------------------------------------------------------------------------
def test_protocols_are_read_by_listener() -> None:
    listeners = "secure://0.0.0.0:9094,mixed://0.0.0.0:9095,open://0.0.0.0:9096"
    advertised = "secure://a:9094,mixed://a:9095,open://a:9096"
    settings = loaded(
        listeners=listeners,
        advertised_listeners=advertised,
        listener_security_protocol_map=" secure:ssl, mixed:SASL_SSL,open:Plaintext ",
    )
    assert settings.security_protocols == {
        "secure": SecurityProtocol.SSL,
        "mixed": SecurityProtocol.SASL_SSL,
        "open": SecurityProtocol.PLAINTEXT,
    }
    assert [one.is_tls for one in settings.security_protocols.values()] == [True, True, False]
    assert [one.is_sasl for one in settings.security_protocols.values()] == [False, True, False]
    assert loaded().security_protocols == {}


@pytest.mark.parametrize(
    ("protocols", "words"),
    [
        ("secure", "NAME:PROTOCOL"),
        ("secure:TLS", "PLAINTEXT, SSL"),
        ("Secure:SSL", "NAME:PROTOCOL"),
        ("secure:SSL,secure:PLAINTEXT", "two protocols"),
        ("other:SSL", r"listener\.security\.protocol\.map: listener other is not in listeners"),
        ("internal:SSL", r"listener\.security\.protocol\.map: the listener internal is the nodes' own"),
    ],
)
def test_what_is_no_protocol_of_a_listener_is_refused(protocols: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        loaded(listeners="secure://127.0.0.1:9094", listener_security_protocol_map=protocols)
