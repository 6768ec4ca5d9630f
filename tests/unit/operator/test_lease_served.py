"""Who of several replicas works, by a Lease of a real API server; each replica has a clock in the test's hands."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from stratalog.model.errors import Fenced
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.lease import DEFAULT_TIMES, Lease, LeaseTimes
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.kubernetes_client import kubernetes_of

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]
_NUMBERS = count()
_PATIENT = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _lease(kubernetes: Kubernetes, namespace: str, identity: str) -> tuple[Lease, Clock]:
    clock = Clock()
    return Lease(kubernetes, namespace, "operator", identity, DEFAULT_TIMES, clock), clock


def _spec(api: ApiServer, namespace: str) -> dict[str, Any]:
    return dict(api.ask("GET", path_of("Lease", namespace, "operator")).body["spec"])


async def _takes(lease: Lease) -> bool:
    """Whether the next attempt takes it."""
    return await lease.attempt()


async def test_one_takes_it_and_the_other_waits_until_it_has_been_the_same_for_fifteen_seconds(api: ApiServer) -> None:
    namespace = api.namespace(f"lease-{next(_NUMBERS)}")
    async with kubernetes_of(api) as kubernetes:
        first, _ = _lease(kubernetes, namespace, "first")
        second, clock = _lease(kubernetes, namespace, "second")
        assert await _takes(first)
        assert not await _takes(second)
        clock.now += 14.9
        assert not await _takes(second)
        assert await _takes(first)  # renewed: the other begins to wait again
        clock.now += 0.2
        assert not await _takes(second)
        clock.now += 15.1
        assert await _takes(second)

    spec = _spec(api, namespace)
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("second", 1, 15)


@pytest.mark.fault("active-replica-frozen-takes")
async def test_who_did_not_renew_in_time_may_not_write_before_another_may_take_over(api: ApiServer) -> None:
    namespace = api.namespace(f"lease-{next(_NUMBERS)}")
    async with kubernetes_of(api) as kubernetes:
        first, clock = _lease(kubernetes, namespace, "first")
        await _takes(first)
        clock.now += 9.9
        first.check()
        clock.now += 0.2
        with pytest.raises(Fenced, match="first does not hold it"):
            first.check()

    assert not first.is_held


async def test_a_holder_that_was_frozen_learns_with_its_first_look_that_it_is_another_now(api: ApiServer) -> None:
    namespace = api.namespace(f"lease-{next(_NUMBERS)}")
    async with kubernetes_of(api) as kubernetes:
        first, _ = _lease(kubernetes, namespace, "first")
        second, clock = _lease(kubernetes, namespace, "second")
        await _takes(first)
        await _takes(second)
        clock.now += 15.1
        await _takes(second)
        # Its clock has not moved: only the record tells it.
        await asyncio.wait_for(first.keep(), _PATIENT)

    assert not first.is_held and second.is_held


async def test_what_is_given_back_is_taken_at_once_and_not_by_two(api: ApiServer) -> None:
    namespace = api.namespace(f"lease-{next(_NUMBERS)}")
    async with kubernetes_of(api) as kubernetes:
        first, _ = _lease(kubernetes, namespace, "first")
        rest = [_lease(kubernetes, namespace, f"one-{number}")[0] for number in range(4)]
        await _takes(first)
        await first.release()
        took = await asyncio.gather(*map(_takes, rest))

    assert took.count(True) == 1
    assert _spec(api, namespace)["holderIdentity"].startswith("one-")


def test_times_by_which_two_would_hold_it_are_refused() -> None:
    with pytest.raises(AssertionError):
        LeaseTimes(duration_s=10.0, renew_within_s=10.0)
    with pytest.raises(AssertionError):
        LeaseTimes(retry_s=4.0)
