"""Logins by PLAIN: Kafka's answers to each malformed message."""

from __future__ import annotations

import pytest

from stratalog.machines.sasl.plain import PlainLogin, parse_plain
from stratalog.model.errors import InvalidRequest


@pytest.mark.parametrize("message", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_a_name_and_a_password_are_read(message: bytes) -> None:
    assert parse_plain(message) == PlainLogin("alice", "secret")


def test_letters_of_all_languages_are_read() -> None:
    assert parse_plain("\0ren\u00e9\0s\u00e9same".encode()) == PlainLogin("ren\u00e9", "s\u00e9same")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"bob\0alice\0secret", "different from username"),
    ],
)
def test_what_names_no_user_is_refused_and_not_quoted(message: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        parse_plain(message)
    assert "secret" not in str(refused.value)


def test_a_password_is_in_no_text_of_a_login() -> None:
    assert "secret" not in repr(parse_plain(b"\0alice\0secret"))
