"""The APIs of quotas, as kafka-python reads them."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.quotas import QuotaEntity, QuotaLimits
from support.control_bench import ControlBench, control_bench

EXACT, DEFAULT, ANY = 0, 1, 2
INVALID, UNSUPPORTED = 42, 35
ENTITIES: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"ip": "10.0.0.1"},
    {"ip": None},
]


def entry(entity: dict[str, str | None], **limits: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": limit or 0.0, "remove": limit is None} for key, limit in limits.items()],
    }


async def alter(
    bench: ControlBench, *entries: dict[str, Any], version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    answer = await bench.ask(49, version, entries=list(entries), validate_only=validate_only)
    distinct = [one for number, one in enumerate(entries) if one not in entries[:number]]
    assert [one.entity[0].entity_type for one in answer.entries if one.entity] == [
        one["entity"][0]["entity_type"] for one in distinct if one["entity"]
    ]
    return [(one.error_code, one.error_message) for one in answer.entries]


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


async def described(
    bench: ControlBench, *components: dict[str, Any], strict: bool = False, version: int = 1
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    answer = await bench.ask(48, version, components=list(components), strict=strict)
    assert (answer.error_code, answer.error_message) == (0, "")
    return [
        (
            {part.entity_type: part.entity_name for part in one.entity},
            {value.key: value.value for value in one.values},
        )
        for one in answer.entries
    ]


async def refusal(bench: ControlBench, *components: dict[str, Any]) -> tuple[int, Any]:
    answer = await bench.ask(48, 1, components=list(components), strict=False)
    return answer.error_code, answer.entries


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_set_described_changed_and_removed(version: int) -> None:
    async with control_bench() as bench:
        alice: dict[str, str | None] = {"user": "alice", "client-id": None}
        first = entry(alice, producer_byte_rate=1_024.0, request_percentage=12.5)
        second = entry({"ip": None}, connection_creation_rate=7.0)
        assert await alter(bench, first, second, version=version) == [(0, None)] * 2
        assert await described(bench, version=version) == [
            (alice, {"producer_byte_rate": 1_024.0, "request_percentage": 12.5}),
            ({"ip": None}, {"connection_creation_rate": 7.0}),
        ]
        limits = QuotaLimits(producer_byte_rate=1_024.0, request_percentage=12.5)
        assert bench.catalog.quotas.limits(QuotaEntity("alice", "")) == limits, "known here when it is answered"
        changed = entry(alice, producer_byte_rate=None, request_percentage=50.0)
        assert await alter(bench, changed, version=version) == [(0, None)]
        assert bench.catalog.quotas.limits(QuotaEntity("alice", "")) == QuotaLimits(request_percentage=50.0)
        gone = entry(alice, request_percentage=None), entry({"ip": None}, connection_creation_rate=None)
        assert await alter(bench, *gone, version=version) == [(0, None)] * 2
        assert await described(bench, version=version) == []


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3, 4, 5, 6]),
        ([], True, []),
        ([component("user", EXACT, "alice")], False, [0, 1, 2]),
        ([component("user", EXACT, "alice")], True, [0]),
        ([component("user", DEFAULT)], False, [3]),
        ([component("user", ANY)], False, [0, 1, 2, 3]),
        ([component("user", ANY)], True, [0, 3]),
        ([component("client-id", EXACT, "app")], False, [1, 4]),
        ([component("client-id", DEFAULT)], False, [2]),
        ([component("user", ANY), component("client-id", ANY)], True, [1, 2]),
        ([component("user", EXACT, "alice"), component("client-id", DEFAULT)], False, [2]),
        ([component("ip", ANY)], False, [5, 6]),
        ([component("ip", EXACT, "10.0.0.1")], False, [5]),
        ([component("ip", DEFAULT)], True, [6]),
        ([component("user", EXACT, "nobody")], False, []),
    ],
)
async def test_a_filter_finds_entities_by_what_they_name(
    components: list[dict[str, Any]], strict: bool, found: list[int]
) -> None:
    async with control_bench() as bench:
        entries = [
            entry(one, **{"connection_creation_rate" if "ip" in one else "producer_byte_rate": 1.0}) for one in ENTITIES
        ]
        assert await alter(bench, *entries) == [(0, None)] * len(ENTITIES)
        got = [entity for entity, _ in await described(bench, *components, strict=strict)]
        assert got == [ENTITIES[number] for number in found]


async def test_a_filter_that_says_nothing_sensible_is_refused() -> None:
    async with control_bench() as bench:
        assert await refusal(bench, component("", EXACT, "a")) == (INVALID, None)
        assert await refusal(bench, component("user", EXACT, "a"), component("user", ANY)) == (INVALID, None)
        assert await refusal(bench, component("group", EXACT, "a")) == (UNSUPPORTED, None)
        assert await refusal(bench, component("ip", ANY), component("user", ANY)) == (INVALID, None)
        assert await refusal(bench, component("user", 3, "a")) == (INVALID, None)
        assert await refusal(bench, component("user", EXACT)) == (INVALID, None)


async def test_each_entity_is_refused_by_itself_with_the_reason() -> None:
    async with control_bench() as bench:
        good = entry({"user": "good"}, producer_byte_rate=1.0)
        both = {"user": "a", "ip": "10.0.0.1"}
        twice = entry({"user": "twice"}, producer_byte_rate=1.0)
        doubled = entry({"user": "doubled"}, producer_byte_rate=1.0)
        doubled["ops"] *= 2
        two_users = entry({"user": "of two"}, producer_byte_rate=1.0)
        two_users["entity"] *= 2
        outcomes = await alter(
            bench,
            good,
            entry({}, producer_byte_rate=1.0),
            entry({"group": "a"}, producer_byte_rate=1.0),
            entry({"user": ""}, producer_byte_rate=1.0),
            entry(both, producer_byte_rate=1.0),
            entry({"user": "a"}, nonsense=1.0),
            entry({"user": "b"}, connection_creation_rate=1.0),
            entry({"ip": "10.0.0.1"}, producer_byte_rate=1.0),
            entry({"ip": "localhost"}, connection_creation_rate=1.0),
            entry({"user": "c"}, producer_byte_rate=0.0),
            entry({"user": "d"}, producer_byte_rate=-5.0),
            entry({"user": "e"}, producer_byte_rate=1.5),
            entry({"user": "f"}, request_percentage=float("nan")),
            twice,
            twice,
            doubled,
            two_users,
        )
        assert [code for code, _ in outcomes] == [0, *[INVALID] * 15]
        assert outcomes[13][1] == "This entity is named more than once in one request: send it once", "answered once"
        assert outcomes[9][1] == "Quota producer_byte_rate must be greater than 0"
        assert outcomes[5][1] == "Invalid configuration key nonsense"
        assert [entity for entity, _ in await described(bench)] == [{"user": "good"}]


async def test_an_address_is_one_however_it_is_written() -> None:
    async with control_bench() as bench:
        await alter(bench, entry({"ip": "2001:DB8:0:0:0:0:0:1"}, connection_creation_rate=1.0))
        assert await described(bench) == [({"ip": "2001:db8::1"}, {"connection_creation_rate": 1.0})]
        found = await described(bench, component("ip", EXACT, "2001:db8:0::1"))
        assert [entity for entity, _ in found] == [{"ip": "2001:db8::1"}]


async def test_what_is_only_validated_is_refused_alike_and_changes_nothing() -> None:
    async with control_bench() as bench:
        entries = entry({"user": "a"}, producer_byte_rate=1.0), entry({"user": "b"}, producer_byte_rate=0.0)
        outcomes = await alter(bench, *entries, validate_only=True)
        assert [code for code, _ in outcomes] == [0, INVALID]
        assert (await bench.meta.snapshot()).quotas == ()


async def test_an_answer_that_was_lost_is_a_timeout_and_an_absent_service_is_retriable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with control_bench() as bench:
        for error, code in ((OutcomeUnknown("lost"), 7), (Unavailable("away"), 5)):

            async def fail(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr(bench.meta, "perform", fail)
            wrong = entry({"user": "b"}, producer_byte_rate=0.0)
            outcomes = await alter(bench, entry({"user": "a"}, producer_byte_rate=1.0), wrong)
            assert [one for one, _ in outcomes] == [code, INVALID]


async def test_two_thousand_users_get_their_quotas_in_one_request() -> None:
    async with control_bench() as bench:
        entries = [entry({"user": f"user-{number}"}, producer_byte_rate=1.0 + number) for number in range(2_000)]
        assert await alter(bench, *entries) == [(0, None)] * 2_000
        found = await described(bench, component("user", ANY))
        assert [limits["producer_byte_rate"] for _, limits in found] == [1.0 + number for number in range(2_000)]
