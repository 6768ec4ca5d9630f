"""Logins of connections, request by request, and how long failed ones wait."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.sasl.failed_logins import (
    FORGOTTEN_AFTER_MS,
    MOST_ADDRESSES,
    MOST_DELAY_MS,
    FailedLogins,
)
from stratalog.machines.sasl.login import (
    LEAST_AGAIN_MS,
    LOGIN_TRANSITIONS,
    Login,
    LoginStep,
    NotNow,
    UnsupportedMechanism,
)
from stratalog.model.addresses import source_of
from stratalog.model.errors import InvalidRequest
from support.legal_transitions import checked_transitions

SCRAM, PLAIN = "SCRAM-SHA-512", "PLAIN"


def proven(name: str = "alice", ends_ms: int = 0) -> Login:
    login = Login([SCRAM, PLAIN])
    login.take_handshake(SCRAM, 0)
    login.take_token()
    login.prove(name, ends_ms)
    return login


def test_a_client_may_ask_for_versions_once_then_choose_and_prove() -> None:
    login = Login([SCRAM])
    login.take_versions()
    login.take_handshake(SCRAM, 0)
    login.take_token()
    login.take_token()
    assert login.step is LoginStep.TOKENS
    login.prove("alice", 0)
    assert (login.step, login.name, login.mechanism) == (LoginStep.DONE, "alice", SCRAM)
    assert not login.is_expired(1 << 60)


@pytest.mark.parametrize(
    "requests",
    [
        ["token"],
        ["another API"],
        ["versions", "versions"],
        ["versions", "token"],
        ["versions", "another API"],
        ["handshake", "versions"],
        ["handshake", "handshake"],
        ["handshake", "another API"],
    ],
)
def test_a_request_out_of_order_ends_the_login_and_is_answered_once_a_mechanism_is_chosen(requests: list[str]) -> None:
    """Kafka 4.3 closes and answers in the same cases."""
    login = Login([SCRAM])
    *before_names, _ = requests
    *before, last = [_requests(login)[name] for name in requests]
    for request in before:
        request()
    with pytest.raises(NotNow) as refused:
        last()
    assert login.step is LoginStep.OVER
    assert refused.value.is_answered == ("handshake" in before_names)


def test_a_mechanism_that_is_not_offered_ends_the_login() -> None:
    login = Login([SCRAM])
    with pytest.raises(UnsupportedMechanism, match=SCRAM):
        login.take_handshake("GSSAPI", 0)
    assert login.step is LoginStep.OVER


def test_a_connection_without_an_end_does_not_log_in_again() -> None:
    login = proven()
    with pytest.raises(NotNow):
        login.take_handshake(SCRAM, 10_000)
    assert login.step is LoginStep.DONE, "as in Kafka, it stays open"
    with pytest.raises(NotNow):
        login.take_token()
    assert login.step is LoginStep.DONE


def test_a_connection_with_an_end_logs_in_again_and_stays_open() -> None:
    login = proven(ends_ms=60_000)
    with pytest.raises(NotNow):
        login.take_handshake(SCRAM, LEAST_AGAIN_MS - 1)
    login.take_handshake(SCRAM, LEAST_AGAIN_MS)
    login.take_token()
    login.prove("alice", 120_000)
    assert not login.is_expired(120_000) and login.is_expired(120_001)


def test_a_second_login_is_of_the_same_user_with_the_same_mechanism() -> None:
    login = proven(ends_ms=60_000)
    login.take_handshake(PLAIN, 30_000)
    login.take_token()
    with pytest.raises(InvalidRequest, match=SCRAM):
        login.check_mechanism()
    assert login.step is LoginStep.OVER
    login = proven(ends_ms=60_000)
    login.take_handshake(SCRAM, 30_000)
    login.take_token()
    with pytest.raises(InvalidRequest, match="another user"):
        login.prove("bob", 120_000)
    assert (login.step, login.name) == (LoginStep.OVER, "alice")


@given(
    st.lists(st.sampled_from(["versions", "handshake", "other", "another API", "token", "prove", "fail"]), max_size=12)
)
def test_no_order_of_requests_leaves_the_table_or_proves_without_a_token(requests: list[str]) -> None:
    login = Login([SCRAM])
    seen: set[tuple[Enum, Enum]] = set()
    with checked_transitions(Login, LOGIN_TRANSITIONS, seen, "step"):
        for request in requests:
            was = login.step
            if request == "prove" and was is not LoginStep.TOKENS:
                continue  # the shell proves after a token alone
            if request == "fail" and was is LoginStep.OVER:
                continue
            try:
                _requests(login)[request]()
            except InvalidRequest:
                assert login.step in (LoginStep.OVER, LoginStep.DONE)
            if login.step is LoginStep.DONE and was is not LoginStep.DONE:
                assert request == "prove" and was is LoginStep.TOKENS


def _requests(login: Login) -> dict[str, Callable[[], None]]:
    return {
        "versions": login.take_versions,
        "handshake": lambda: login.take_handshake(SCRAM, 5_000),
        "other": lambda: login.take_handshake("GSSAPI", 5_000),
        "another API": lambda: login.take_other("Metadata"),
        "token": login.take_token,
        "prove": lambda: login.prove("alice", 60_000),
        "fail": login.fail,
    }


# Failures -----------------------------------------------------------------------------------------------------------
def test_failures_of_one_address_wait_longer_and_longer() -> None:
    failures = FailedLogins(100)
    assert [failures.failed("a", 0) for _ in range(12)] == [
        100, 100, 100, 200, 400, 800, 1_600, 3_200, 6_400, MOST_DELAY_MS, MOST_DELAY_MS, MOST_DELAY_MS,
    ]  # fmt: skip
    assert failures.failed("b", 0) == 100, "another address does not wait for it"


def test_failures_are_forgotten_after_a_while() -> None:
    failures = FailedLogins(100)
    for _ in range(10):
        failures.failed("a", 0)
    assert failures.failed("a", FORGOTTEN_AFTER_MS) == MOST_DELAY_MS
    assert failures.failed("a", 2 * FORGOTTEN_AFTER_MS + 1) == 100


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_machine_has_one_count_whichever_of_its_addresses_it_uses(address: str, source: str) -> None:
    assert source_of(address) == source


def test_addresses_of_one_network_share_their_count() -> None:
    failures = FailedLogins(100)
    assert [failures.failed(f"2001:db8::{number:x}", 0) for number in range(5)] == [100, 100, 100, 200, 400]
    assert failures.failed("2001:db8:0:1::1", 0) == 100


def test_addresses_are_bounded() -> None:
    failures = FailedLogins(100)
    for number in range(MOST_ADDRESSES + 10):
        failures.failed(str(number), number)
    assert len(failures._failures) == MOST_ADDRESSES


@pytest.mark.parametrize(("least_ms", "delay_ms"), [(0, 0), (20_000, 20_000)])
def test_the_setting_bounds_the_delay(least_ms: int, delay_ms: int) -> None:
    failures = FailedLogins(least_ms)
    assert [failures.failed("a", 0) for _ in range(30)] == [delay_ms] * 30
