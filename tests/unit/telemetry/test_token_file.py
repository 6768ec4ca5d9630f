"""The file of tokens: what it may contain, and that it is read again when it changes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.model.roles import Role
from stratalog.model.tokens import MOST_TOKENS, digest_of, find_named, parse_named_tokens, parse_tokens, shows_token
from stratalog.telemetry.token_file import POLL_S, RoleFile, TokenFile, role_file, token_file

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


# Named tokens -------------------------------------------------------------------------------------------------------
VIEWER_TOKEN, ADMIN_TOKEN = "the-token-of-grafana", "the-token-of-alice-1"
HASHED = "sha256:" + hashlib.sha256(ADMIN_TOKEN.encode()).hexdigest()


def test_a_line_names_role_holder_and_token_or_its_hash() -> None:
    found = parse_named_tokens(
        f"# who may look\nviewer grafana {VIEWER_TOKEN}\n\n  admin\talice@example {HASHED}\r\n", "file"
    )
    assert [(one.name, one.role) for one in found] == [("grafana", Role.VIEWER), ("alice@example", Role.ADMIN)]
    grafana = find_named(digest_of(VIEWER_TOKEN.encode()), found)
    alice = find_named(digest_of(ADMIN_TOKEN.encode()), found)
    assert grafana is found[0] and alice is found[1], "the hash opens with the token that it is of"
    for wrong in (HASHED, "", VIEWER_TOKEN + "x", VIEWER_TOKEN.upper()):
        assert find_named(digest_of(wrong.encode()), found) is None
    assert VIEWER_TOKEN not in repr(found) and parse_named_tokens("", "file") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"viewer {VIEWER_TOKEN}", "line 1: expected ROLE NAME TOKEN"),
        (f"{VIEWER_TOKEN}", "line 1: expected ROLE NAME TOKEN"),
        (f"viewer a b {VIEWER_TOKEN}", "line 1: expected ROLE NAME TOKEN"),
        (f"\nroot alice {VIEWER_TOKEN}", "line 2: the first word must be a role: viewer, operator, admin"),
        (f"Viewer alice {VIEWER_TOKEN}", "line 1: the first word"),
        (f"viewer al/ice {VIEWER_TOKEN}", "line 1: the second word"),
        (f"viewer {'a' * 65} {VIEWER_TOKEN}", "line 1: the second word"),
        (f"viewer cluster {VIEWER_TOKEN}", "line 1: the second word"),
        ("viewer alice too-short", "line 1: the third word"),
        ("viewer alice sha256:abc", "line 1: the third word"),
        (f"viewer alice sha256:{hashlib.sha256().hexdigest()}", "line 1: this is the hash of nothing"),
        (f"viewer alice {VIEWER_TOKEN}\nadmin alice {ADMIN_TOKEN}", "a name has two roles"),
        (f"viewer alice {VIEWER_TOKEN}\nviewer alice {VIEWER_TOKEN}", "a token twice"),
        (f"viewer alice {VIEWER_TOKEN}\nadmin bob {VIEWER_TOKEN}", "a token twice"),
        ("".join(f"viewer n{number} {VIEWER_TOKEN}-{number}\n" for number in range(101)), "100 are the most"),
    ],
)
def test_a_file_of_named_tokens_with_a_fault_is_refused_whole_without_a_token_in_the_message(
    text: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_named_tokens(text, "the-file")
    assert words in str(refused.value) and "the-file" in str(refused.value)
    assert VIEWER_TOKEN not in str(refused.value) and ADMIN_TOKEN not in str(refused.value)


def test_a_token_of_the_cluster_has_no_role(tmp_path: Path) -> None:
    cluster, roles = tmp_path / "cluster", tmp_path / "roles"
    cluster.write_text(f"{NEW}\n{OLD}\n")
    for held in (OLD, f"sha256:{hashlib.sha256(OLD.encode()).hexdigest()}"):
        roles.write_text(f"admin alice {ADMIN_TOKEN}\nviewer grafana {held}\n")
        with pytest.raises(InvalidRequest, match="the token of grafana is the one of"):
            role_file(str(roles), TokenFile(cluster))
    roles.write_text(f"admin alice {ADMIN_TOKEN}\n")
    assert role_file(str(roles), TokenFile(cluster)) is not None and role_file("", TokenFile(cluster)) is None


def test_named_tokens_are_read_again_and_a_removed_one_opens_nothing(tmp_path: Path) -> None:
    path, steady = tmp_path / "roles", Steady()
    path.write_text(f"viewer grafana {VIEWER_TOKEN}\nadmin alice {ADMIN_TOKEN}\n")
    known = RoleFile(path, steady_s=steady)
    assert find_named(digest_of(ADMIN_TOKEN.encode()), known.all()) is not None
    path.write_text(f"viewer grafana {VIEWER_TOKEN}\n")
    steady.advance()
    assert find_named(digest_of(ADMIN_TOKEN.encode()), known.all()) is None
    path.write_text("viewer grafana nonsense!\n")
    steady.advance()
    assert find_named(digest_of(VIEWER_TOKEN.encode()), known.all()) is not None, "a file with a fault changes nothing"
    path.write_text("# no token yet\n")
    steady.advance()
    assert known.all() == ()
