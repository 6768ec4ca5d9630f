"""Tokens of OAUTHBEARER: which are taken, and those that were made to look as if."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.settings.process import ProcessSettings
from stratalog_node.serve.connections import bearer_tokens
from stratalog_node.serve.connections.bearer_tokens import BearerTokens
from support.tokens import Issuer


async def checker(issuer: Issuer | str, **settings: Any) -> BearerTokens:
    url = issuer if isinstance(issuer, str) else issuer.url
    tokens = BearerTokens(ProcessSettings(sasl_oauthbearer_jwks_endpoint_url=url, **settings))
    await tokens._refresh()
    return tokens


@pytest.mark.parametrize("is_rsa", [True, False])
async def test_a_signed_token_names_its_user_and_its_end(tmp_path: Path, is_rsa: bool) -> None:
    issuer = Issuer(tmp_path, is_rsa=is_rsa)
    proven = await (await checker(issuer)).check(issuer.token("alice", ends_in_s=600))
    assert proven.user == "alice"
    assert abs(proven.ends_ms / 1_000 - time.time() - 600) < 5


async def test_the_user_may_stand_in_another_claim(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer, sasl_oauthbearer_sub_claim_name="client_id")
    assert (await tokens.check(issuer.token(client_id="robot"))).user == "robot"
    for wrong in (None, "", "  ", 7, ["alice"]):
        with pytest.raises(InvalidRequest, match="no user"):
            await tokens.check(issuer.token(client_id=wrong))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"ends_in_s": -31}, "Expired"),
        ({"exp": None}, "MissingRequiredClaim"),
        ({"iat": None}, "MissingRequiredClaim"),
        ({"exp": "soon"}, "DecodeError"),
        ({"nbf": 4_000_000_000}, "ImmatureSignature"),
        ({"iss": "https://other"}, "InvalidIssuer"),
        ({"iss": None}, "MissingRequiredClaim"),
        ({"aud": "other"}, "InvalidAudience"),
        ({"aud": None}, "MissingRequiredClaim"),
    ],
)
async def test_a_token_for_another_time_issuer_or_audience_is_refused(
    tmp_path: Path, claims: dict[str, Any], why: str
) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(
        issuer, sasl_oauthbearer_expected_issuer="https://us", sasl_oauthbearer_expected_audience="kafka, stratalog"
    )
    good = {"iss": "https://us", "aud": ["x", "stratalog"]}
    assert (await tokens.check(issuer.token(**good))).user == "alice"
    with pytest.raises(InvalidRequest, match=why):
        await tokens.check(issuer.token(**(good | claims)))


async def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer, sasl_oauthbearer_clock_skew_seconds=60)
    assert (await tokens.check(issuer.token(ends_in_s=-30))).user == "alice"


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def forged(issuer: Issuer, kind: str, folder: Path) -> str:
    claims = {"sub": "admin", "iat": int(time.time()), "exp": int(time.time()) + 600}
    header, _, signature = issuer.token().split(".")
    match kind:
        case "without a signature":
            return f"{encoded({'alg': 'none', 'kid': 'one'})}.{encoded(claims)}."
        case "signed with the public key as a secret":
            signed = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(claims)}"
            mac = hmac.new(issuer.public_pem, signed.encode(), hashlib.sha256).digest()
            return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        case "of another issuer's key":
            return Issuer(folder / "other").token("admin")
        case "with other claims":
            return f"{header}.{encoded(claims)}.{signature}"
        case "with a key of its own":
            other = Issuer(folder / "other")
            jwk = json.loads(other.path.read_text())["keys"][0]
            signed = other.token("admin").split(".")
            return f"{encoded({'alg': 'RS256', 'kid': 'one', 'jwk': jwk})}.{signed[1]}.{signed[2]}"
        case "with an address of its keys":
            signed = Issuer(folder / "other").token("admin").split(".")
            return f"{encoded({'alg': 'RS256', 'kid': 'one', 'jku': 'http://evil/'})}.{signed[1]}.{signed[2]}"
        case "of another algorithm":
            return f"{encoded({'alg': 'ES256', 'kid': 'one'})}.{encoded(claims)}.{signature}"
        case "in two parts":
            return f"{header}.{encoded(claims)}"
        case "with a key id that is a list":
            return f"{encoded({'alg': 'RS256', 'kid': ['one']})}.{encoded(claims)}.{signature}"
    return "no token at all"


@pytest.mark.parametrize(
    "kind",
    [
        "without a signature",
        "signed with the public key as a secret",
        "of another issuer's key",
        "with other claims",
        "with a key of its own",
        "with an address of its keys",
        "of another algorithm",
        "in two parts",
        "with a key id that is a list",
        "nothing",
    ],
)
async def test_a_forged_token_is_refused_and_not_quoted(tmp_path: Path, kind: str) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer)
    token = forged(issuer, kind, tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        await tokens.check(token)
    assert token not in str(refused.value)


# Keys ---------------------------------------------------------------------------------------------------------------
async def test_a_token_with_a_new_key_has_the_keys_read_again_and_a_retired_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer)
    before = issuer.token()
    issuer.rotate("two")
    with pytest.raises(InvalidRequest, match="unknown key"):
        await tokens.check(issuer.token())  # they were read a moment ago
    assert tokens.stats.key_reads == 1
    monkeypatch.setattr(bearer_tokens, "_LEAST_REFRESH_S", 0.0)
    assert (await tokens.check(issuer.token())).user == "alice"
    with pytest.raises(InvalidRequest, match="unknown key"):
        await tokens.check(before)


async def test_many_tokens_with_unknown_keys_have_the_keys_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer)
    issuer.rotate("two")
    tokens._read_at_s -= 11
    found = await asyncio.gather(*(tokens.check(issuer.token()) for _ in range(20)))
    assert [one.user for one in found] == ["alice"] * 20
    assert tokens.stats.key_reads == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"keys": 7}',
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        '{"keys": [7, {}]}',
        "[" * 5_000,
    ],
)
async def test_keys_that_cannot_be_read_leave_the_earlier_ones_in_use(tmp_path: Path, content: str) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer)
    issuer.path.write_text(content)
    await tokens._refresh()
    assert (tokens.stats.key_failures, tokens.stats.keys) == (1, 1)
    assert (await tokens.check(issuer.token())).user == "alice"


async def test_without_keys_no_token_is_taken(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker((tmp_path / "missing.json").as_uri())
    assert tokens.stats.key_failures == 1
    with pytest.raises(Unavailable):
        await tokens.check(issuer.token())


async def test_keys_are_read_from_a_web_server_which_may_not_send_the_reader_elsewhere(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    answers: list[web.StreamResponse] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        return answers.pop()

    server = web.Application()
    server.router.add_get("/jwks", handle)
    runner = web.AppRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        answers.append(web.Response(text=issuer.path.read_text()))
        tokens = await checker(f"http://127.0.0.1:{port}/jwks")
        assert (await tokens.check(issuer.token())).user == "alice"
        for wrong in (
            web.Response(status=302, headers={"location": issuer.url}),
            web.Response(status=500),
            web.Response(body=b" " * (2 << 20)),
        ):
            answers.append(wrong)
            failures = tokens.stats.key_failures
            await tokens._refresh()
            assert tokens.stats.key_failures == failures + 1
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("end", [1e300, float("inf"), float("nan"), True, 10**30, "soon", [1], -5])
@pytest.mark.parametrize("claim", ["exp", "iat"])
async def test_a_signed_token_with_an_odd_time_is_refused_and_harms_nothing(
    tmp_path: Path, claim: str, end: object
) -> None:
    issuer = Issuer(tmp_path)
    tokens = await checker(issuer)
    token = issuer.token(**{claim: end})
    try:
        proven = await tokens.check(token)
    except InvalidRequest:
        return
    assert claim == "iat" and proven.ends_ms < 1 << 62


async def test_keys_in_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    tokens = await checker((tmp_path / "pipe").as_uri())
    assert tokens.stats.key_failures == 1
