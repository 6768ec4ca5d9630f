"""Logins by bearer tokens: the messages."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.sasl.oauth_bearer import LONGEST_MESSAGE, BearerLogin, parse_bearer, reason_of_failure
from stratalog.model.errors import InvalidRequest


@pytest.mark.parametrize(
    ("message", "login"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", BearerLogin("a.b.c", "")),
        (b"n,a=al=2Cice,\x01auth=bearer   a.b-_c\x01\x01", BearerLogin("a.b-_c", "al,ice")),
        (b"n,,\x01host=server\x01port=143\x01auth=Bearer a==\x01logicalCluster=lkc 1\x01\x01", BearerLogin("a==", "")),
    ],
)
def test_the_token_is_read_among_other_pairs(message: bytes, login: BearerLogin) -> None:
    assert parse_bearer(message) == login


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01auth=Bearer secret\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic secret\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer se cret\x01\x01",
        b"y,,\x01auth=Bearer secret\x01\x01",
        b"n,,\x01Auth1=Bearer secret\x01\x01",
        b"n,,\x01auth=Bearer " + b"s" * LONGEST_MESSAGE + b"\x01\x01",
    ],
)
def test_what_has_no_token_is_refused_and_not_quoted(message: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_bearer(message)
    assert "secret" not in str(refused.value)


@given(st.binary(max_size=100))
def test_whatever_comes_is_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_bearer(b"n,,\x01" + message)


def test_a_failure_has_a_reason_and_no_token_is_in_a_text() -> None:
    assert reason_of_failure() == b'{"status":"invalid_token"}'
    assert "a.b.c" not in repr(BearerLogin("a.b.c", ""))
