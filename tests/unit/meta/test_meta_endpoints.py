"""The instance that a client asks: the leader that was named, else all in turn."""

from __future__ import annotations

import pytest

from stratalog.meta_api.endpoints import Endpoints, parse_endpoints
from stratalog.model.errors import InvalidRequest

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def test_instances_are_asked_in_turn_while_they_fail() -> None:
    endpoints = Endpoints((A, B, C))
    asked = []
    for _ in range(4):
        asked.append(endpoints.present)
        endpoints.failed(endpoints.present)
    assert asked == [A, B, C, A]


def test_who_was_named_as_the_leader_is_asked_until_it_fails() -> None:
    endpoints = Endpoints((A, B, C))
    endpoints.leads(C + "/")
    assert endpoints.present == C
    endpoints.answered(C)
    endpoints.failed(A)
    assert endpoints.present == C, "another request came back late from an instance that nobody asks any more"
    endpoints.failed(C)
    assert endpoints.present == A


def test_a_leader_that_was_not_listed_is_asked_and_then_the_listed_ones_again() -> None:
    endpoints = Endpoints((A, B))
    endpoints.leads(C)
    assert endpoints.present == C
    seen = set()
    for _ in range(2):
        endpoints.failed(endpoints.present)
        seen.add(endpoints.present)
    assert seen == {A, B}


def test_one_instance_is_asked_again_and_again() -> None:
    endpoints = Endpoints((A,))
    endpoints.failed(A)
    assert endpoints.present == A


@pytest.mark.parametrize(
    "text", ["", "a:1", "http://", "http://a:1,", "http://a:1,http://a:1/", "ftp://a:1", "http://a:x"]
)
def test_what_is_not_an_address_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"http://HOST:PORT|twice"):
        parse_endpoints(text)


def test_addresses_are_split_at_commas() -> None:
    assert parse_endpoints("http://a:1, http://[::1]:2/") == ("http://a:1", "http://[::1]:2")
