"""The file of tokens: what it may contain, and that it is read again when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.model.tokens import MOST_TOKENS, parse_tokens, shows_token
from stratalog.telemetry.token_file import POLL_S, TokenFile, token_file

OLD, NEW = "the-old-token-of-all", "the-new-token-of-all"


class Steady:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self) -> None:
        self.now_s += POLL_S


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OLD, (OLD,)),
        (f"{OLD}\n", (OLD,)),
        (f"\n  {OLD} \r\n\n", (OLD,)),
        (f"{NEW}\n{OLD}\n", (NEW, OLD)),
        ("0123456789abcdef", ("0123456789abcdef",)),
        ("aB0-._~+/=" * 2, ("aB0-._~+/=" * 2,)),
    ],
)
def test_a_token_is_in_each_line(text: str, found: tuple[str, ...]) -> None:
    assert parse_tokens(text, "file") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no token"),
        ("\n \n", "holds no token"),
        ("too-short", "line 1: expected 16 to 2048"),
        (f"{OLD}\nwith a space inside\n", "line 2: expected"),
        (f"{OLD}\n{'x' * 2_049}", "line 2: expected"),
        ("passwort-mit-ß-darin", "line 1: expected"),
        (f"{OLD}\0", "line 1: expected"),
        (f"token={OLD}:x", "line 1: expected"),
        (f"{OLD}\n" * (MOST_TOKENS + 1), "4 are the most"),
    ],
)
def test_what_is_not_a_token_is_refused_without_being_repeated(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tokens(text, "the-file")
    assert words in str(refused.value) and "the-file" in str(refused.value)
    assert not any(line.strip() in str(refused.value) for line in text.splitlines() if len(line.strip()) > 8)


@given(st.lists(st.text(max_size=60), max_size=3))
def test_no_header_that_is_made_up_opens_anything(headers: list[str]) -> None:
    assert not shows_token(headers, (OLD, NEW))


def test_a_token_is_replaced_while_all_run(tmp_path: Path) -> None:
    path, steady = tmp_path / "token", Steady()
    path.write_text(OLD)
    known = TokenFile(path, steady_s=steady)
    path.write_text(f"{OLD}\n{NEW}\n")
    assert known.all() == (OLD,), "it looks once a second"
    steady.advance()
    assert (known.all(), known.first()) == ((OLD, NEW), OLD)
    path.write_text(f"{NEW}\n{OLD}\n")
    os.utime(path, ns=(1, 1))  # of the same length, and perhaps within one tick of the file system's clock
    steady.advance()
    assert known.first() == NEW
    path.write_text(NEW)
    steady.advance()
    assert known.all() == (NEW,)


@pytest.mark.fault("token-replaced-cluster-runs")
def test_a_secret_that_is_mounted_is_followed_to_where_it_moves(tmp_path: Path) -> None:
    """As a kubelet does it: a link to a folder is replaced, and the file's own name stays a link."""
    for name, token in (("first", OLD), ("second", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "token").symlink_to("..data/token")
    steady = Steady()
    known = TokenFile(tmp_path / "token", steady_s=steady)
    assert known.first() == OLD
    (tmp_path / "..data_tmp").symlink_to("second")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    steady.advance()
    assert known.first() == NEW


@pytest.mark.fault("token-replaced-cluster-runs")
def test_what_cannot_be_read_again_changes_nothing_until_it_can(tmp_path: Path) -> None:
    path, steady = tmp_path / "token", Steady()
    path.write_text(OLD)
    known = TokenFile(path, steady_s=steady)
    for broken in ("", "short", "x" * 20_000):
        path.write_text(broken)
        steady.advance()
        assert known.all() == (OLD,)
    path.unlink()
    steady.advance()
    assert known.all() == (OLD,)
    path.write_text(NEW)
    steady.advance()
    assert known.all() == (NEW,)


def test_a_process_does_not_start_without_the_token_that_it_was_given(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 20_000)
    (tmp_path / "binary").write_bytes(b"\xff" * 32)
    for name, words in (
        ("missing", "cannot be read"),
        ("pipe", "not a file"),
        (".", "not a file"),
        ("large", "larger than"),
        ("binary", "other characters"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            token_file(f"{tmp_path}/{name}")
    assert token_file("") is None
