"""Tokens that commands fetch from an identity provider: what is asked, what is taken, kept, asked again and refused."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.connect import token_endpoint
from stratalog.connect.token_endpoint import FetchedTokens, TokenEndpoint, checked_url, end_of, fetch
from stratalog.model.errors import InvalidRequest, Unavailable
from support.certificates import Authority
from support.identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those between attempts, which pass at once."""
    passed: list[float] = []
    monkeypatch.setattr(token_endpoint.time, "sleep", passed.append)
    return passed


def endpoint_of(provider: IdentityProvider, **changed: str) -> TokenEndpoint:
    return replace(TokenEndpoint(provider.url, CLIENT, SECRET, "read write"), **changed)


def jwt_ending(end_s: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": end_s}).encode()).decode().rstrip("=")
    return f"e30.{body}.x"


def test_a_client_proves_itself_by_its_secret_and_names_its_scope(provider: IdentityProvider) -> None:
    found = fetch(endpoint_of(provider))
    assert (found.token, found.lasts_s) == ("token-1", 600)
    assert provider.asked == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]
    fetch(endpoint_of(provider, scope=""))
    assert provider.asked[1] == {"grant_type": ["client_credentials"]}


def test_a_secret_goes_over_tls_to_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("another")
    for name, one in (("ca.crt", authority), ("other.crt", other)):
        (tmp_path / name).write_bytes(one.certificate)
    with identity_provider(authority, tmp_path / "server") as provider:
        assert fetch(endpoint_of(provider, authorities=str(tmp_path / "ca.crt"))).token == "token-1"
        for file in ("other.crt", ""):
            with pytest.raises(InvalidRequest, match=r"cannot be trusted .*set https.ca.location"):
                fetch(endpoint_of(provider, authorities=str(tmp_path / file) if file else ""))
        with pytest.raises(InvalidRequest, match="cannot be read"):
            fetch(endpoint_of(provider, authorities=str(tmp_path / "none.crt")))
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    ("token_ends_in_s", "expires_in", "lasts_s"),
    [(None, None, 60), (None, 300, 300), (5_000, None, 5_000), (5_000, 100, 100), (5_000, 9_000, 5_000)],
)
def test_a_token_ends_at_the_earlier_of_both_times_that_are_said(
    provider: IdentityProvider, token_ends_in_s: float | None, expires_in: float | None, lasts_s: float
) -> None:
    provider.token = "opaque" if token_ends_in_s is None else jwt_ending(time.time() + token_ends_in_s)
    provider.expires_in = expires_in
    assert lasts_s - 400 < fetch(endpoint_of(provider)).lasts_s <= lasts_s


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_provider_that_cannot_now_is_asked_again_after_pauses(
    provider: IdentityProvider, pauses: list[float], status: int
) -> None:
    provider.answers = [(status, b""), (status, b"")]
    assert fetch(endpoint_of(provider)).token == "token-1"
    assert len(provider.asked) == 3
    assert [low <= pause <= 2 * low for low, pause in zip((0.05, 0.1), pauses, strict=True)] == [True, True]


def test_attempts_are_bounded(provider: IdentityProvider, pauses: list[float]) -> None:
    provider.answers = [(503, b'{"error": "temporarily_unavailable"}')] * 9
    with pytest.raises(Unavailable, match=r"503, temporarily_unavailable"):
        fetch(endpoint_of(provider))
    assert (len(provider.asked), len(pauses)) == (4, 3)


def test_a_provider_that_is_not_there_is_named(pauses: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/token?key=sesame"
        with pytest.raises(Unavailable, match=r"identity provider at http://127.0.0.1:\d+/token does not") as refused:
            fetch(TokenEndpoint(url, CLIENT, SECRET))
    assert len(pauses) == 3 and "sesame" not in str(refused.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refused_client_is_not_asked_for_again_and_no_secret_is_shown(
    provider: IdentityProvider, pauses: list[float], status: int
) -> None:
    body = json.dumps({"error": "invalid_client", "error_description": f"secret was {SECRET}"}).encode()
    provider.answers = [(status, body)]
    with pytest.raises(InvalidRequest, match=rf"{status}, invalid_client\) to robot: check") as refused:
        fetch(endpoint_of(provider))
    assert SECRET not in str(refused.value) and not pauses


def test_a_redirect_is_not_followed(provider: IdentityProvider) -> None:
    provider.answers = [(302, b"")]
    with pytest.raises(InvalidRequest, match="leads elsewhere"):
        fetch(endpoint_of(provider))
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b'{"access_token": 5}', b'{"access_token": "two words"}', b"[" * 50_000],
)
def test_an_answer_that_holds_no_token_is_refused(provider: IdentityProvider, body: bytes) -> None:
    provider.answers = [(200, body)]
    with pytest.raises(InvalidRequest, match="answers without a token") as refused:
        fetch(endpoint_of(provider))
    assert "two words" not in str(refused.value)


def test_a_token_that_has_ended_is_refused(provider: IdentityProvider) -> None:
    provider.token = jwt_ending(time.time() - 100)
    with pytest.raises(InvalidRequest, match="ended already: check the clocks"):
        fetch(endpoint_of(provider))


def test_of_a_long_answer_only_the_limit_is_read(provider: IdentityProvider, pauses: list[float]) -> None:
    provider.answers = [(200, json.dumps({"access_token": "x" * 70_000}).encode())] * 9
    with pytest.raises(Unavailable, match="above 65536 bytes"):
        fetch(endpoint_of(provider))


@pytest.mark.parametrize("sends", [b"", b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"])
def test_an_answer_that_never_ends_is_given_up_after_a_while(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], sends: bytes
) -> None:
    """Although a byte comes each moment."""
    monkeypatch.setattr(token_endpoint, "_ATTEMPT_S", 0.1)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            while not is_over.is_set():
                taken, _ = server.accept()
                with taken:
                    try:
                        taken.sendall(sends)
                        while not is_over.wait(0.01):
                            taken.sendall(b"a" if sends else b"")
                            if not sends and taken.recv(4096) == b"":
                                break
                    except OSError:
                        pass

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        port = server.getsockname()[1]
        with pytest.raises(Unavailable, match="does not answer"):
            fetch(TokenEndpoint(f"http://127.0.0.1:{port}/token", CLIENT, SECRET))
        is_over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        dripping.join(30)
    assert len(pauses) == 3


# Kept ---------------------------------------------------------------------------------------------------------------
class Clock:
    now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_a_token_is_kept_and_renewed_before_it_ends(provider: IdentityProvider) -> None:
    clock = Clock()
    tokens = FetchedTokens(endpoint_of(provider), clock.monotonic_s)
    assert [tokens.current(), tokens.current()] == ["token-1"] * 2
    provider.token = "token-2"
    clock.now_s += 479
    assert tokens.current() == "token-1"
    clock.now_s += 2
    assert tokens.current() == "token-2"
    assert len(provider.asked) == 2


def test_a_token_serves_while_no_other_can_be_had_but_not_to_its_end(
    provider: IdentityProvider, pauses: list[float]
) -> None:
    clock = Clock()
    tokens = FetchedTokens(endpoint_of(provider), clock.monotonic_s)
    tokens.current()
    provider.answers = [(503, b"")] * 8
    clock.now_s += 590
    assert tokens.current() == "token-1"
    clock.now_s += 6
    with pytest.raises(Unavailable):
        tokens.current()
    assert tokens.current() == "token-1", "the provider is there again"


def test_threads_share_one_fetch(provider: IdentityProvider) -> None:
    tokens = FetchedTokens(endpoint_of(provider))
    threads = [threading.Thread(target=tokens.current) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(provider.asked) == 1


# Addresses ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "url",
    [
        "https://idp/token",
        "https://idp:8443/a?b=c",
        "http://localhost/t",
        "http://127.0.0.9:80/t",
        "http://[::1]:8080/t",
    ],
)
def test_a_secret_may_go_by_tls_or_to_this_machine(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://idp/token", "not encrypted"),
        ("http://localhost.example/token", "not encrypted"),
        ("http://127.0.0.1.example/token", "not encrypted"),
        ("https://me:sesame@idp/token", "no user and no password"),
        ("http://localhost@idp/token", "no user and no password"),
        ("https:///token", "expected https"),
        ("/token", "expected https"),
        ("ftp://idp/token", "expected https"),
        ("https://idp/to ken", "expected https"),
        ("https://idp:port/token", "not an address"),
        ("https://[::1/token", "not an address"),
    ],
)
def test_a_secret_goes_nowhere_else(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        checked_url(url)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.!!.c", "e30.e30.x", jwt_ending(1)[:-6], "e30.W10.x"])
def test_an_opaque_token_says_no_end(token: str) -> None:
    assert end_of(token) is None


def test_no_secret_is_in_a_text(provider: IdentityProvider) -> None:
    endpoint = endpoint_of(provider)
    assert SECRET not in repr(endpoint) and "token-1" not in repr(fetch(endpoint))
