"""The APIs of rules (ACLs) and SCRAM users, as kafka-python reads them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.machines.sasl.scram import credential_from, is_password
from stratalog.model.commands.rights_commands import CreateRules
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import ScramMechanism
from support.control_bench import ControlBench, control_bench

TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE, ALL = 3, 4, 2
DENY, ALLOW = 2, 3
SHA_256, SHA_512 = 1, 2
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SECURITY_DISABLED, DUPLICATE, NOT_FOUND, UNACCEPTABLE, UNSUPPORTED_MECHANISM = 54, 92, 91, 93, 33
INVALID_REQUEST = 42


def creation(name: str = "orders", pattern: int = LITERAL, **more: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    } | more


def wanted(**more: Any) -> dict[str, Any]:
    """Everything, but for what is said."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | more


async def create(bench: ControlBench, *creations: dict[str, Any], version: int = 3) -> list[tuple[int, str | None]]:
    answer = await bench.ask(30, version, creations=list(creations))
    return [(one.error_code, one.error_message) for one in answer.results]


async def described(bench: ControlBench, version: int = 3, **more: Any) -> list[tuple[str, int]]:
    """Name and pattern type of the resources."""
    answer = await bench.ask(29, version, **wanted(**more))
    assert (answer.error_code, answer.error_message) == (0, "")
    return [(one.resource_name, one.pattern_type) for one in answer.resources]


# Rules --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("name", ["stratalog", STANDARD])
async def test_a_rule_is_created_described_and_deleted(version: int, name: str) -> None:
    async with control_bench(authorizer_class_name=name) as bench:
        assert await create(bench, creation(), creation("ord", PREFIXED), version=version) == [(0, "")] * 2
        answer = await bench.ask(29, version, **wanted(resource_name_filter="orders", pattern_type_filter=MATCH))
        assert [(one.resource_type, one.resource_name, one.pattern_type) for one in answer.resources] == [
            (TOPIC, "orders", LITERAL),
            (TOPIC, "ord", PREFIXED),
        ]
        (acl,) = answer.resources[0].acls
        assert (acl.principal, acl.host, acl.operation, acl.permission_type) == ("User:alice", "*", READ, ALLOW)
        answer = await bench.ask(31, version, filters=[wanted(resource_name_filter="orders"), wanted(host_filter="h")])
        first, second = answer.filter_results
        assert (first.error_code, second.error_code, second.matching_acls) == (0, 0, [])
        (gone,) = first.matching_acls
        assert (gone.error_code, gone.resource_type, gone.resource_name, gone.pattern_type) == (
            0,
            TOPIC,
            "orders",
            LITERAL,
        )
        assert (gone.principal, gone.host, gone.operation, gone.permission_type) == ("User:alice", "*", READ, ALLOW)
        assert await described(bench, version) == [("ord", PREFIXED)]


async def test_a_created_rule_counts_here_when_it_is_answered_and_a_deleted_one_does_not() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        rule = Rule(
            Resource(ResourceType.TOPIC, "orders", PatternType.LITERAL),
            "User:alice",
            "*",
            Operation.READ,
            Permission(3),
        )
        for _ in range(20):
            await create(bench, creation())
            assert rule in bench.catalog.rights.authorizer
            await bench.ask(31, 3, filters=[wanted()])
            assert rule not in bench.catalog.rights.authorizer


async def test_each_rule_is_refused_by_itself_with_the_reason() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        answers = await create(
            bench,
            creation(),
            creation(""),
            creation(resource_type=ANY),
            creation(pattern=MATCH),
            creation(operation=ANY),
            creation(permission_type=ANY),
            creation(resource_type=99),
            creation("other", resource_type=CLUSTER),
            creation(principal="alice"),
            creation("kafka-cluster", resource_type=CLUSTER),
            creation(),
        )
        assert [code for code, _ in answers] == [0, *[INVALID_REQUEST] * 8, 0, 0]
        assert answers[2][1] == "Invalid resourceType ANY"
        assert answers[7][1] == "The only valid name for the CLUSTER resource is kafka-cluster"
        assert sorted(await described(bench)) == [("kafka-cluster", LITERAL), ("orders", LITERAL)]


async def test_a_filter_with_a_number_that_means_nothing_is_refused_and_the_others_are_not() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        await create(bench, creation())
        for unknown in ({"resource_type_filter": 77}, {"pattern_type_filter": 0}):
            answer = await bench.ask(29, 3, **wanted(**unknown))
            assert (answer.error_code, answer.resources) == (INVALID_REQUEST, [])
        assert await described(bench, operation=77) == [], "as in Kafka"
        answer = await bench.ask(31, 3, filters=[wanted(resource_type_filter=77), wanted()])
        assert [one.error_code for one in answer.filter_results] == [INVALID_REQUEST, 0]
        assert [len(one.matching_acls) for one in answer.filter_results] == [0, 1]


async def test_without_an_authorizer_rules_are_answered_as_disabled() -> None:
    async with control_bench() as bench:
        await bench.meta.perform(CreateRules((Rule(Resource(ResourceType.TOPIC, "a"), "User:a", "*", *_ALLOW_READ),)))
        answer = await bench.ask(29, 3, **wanted())
        assert (answer.error_code, answer.resources) == (SECURITY_DISABLED, [])
        assert await create(bench, creation(), creation()) == [(SECURITY_DISABLED, "No Authorizer is configured.")] * 2
        answer = await bench.ask(31, 3, filters=[wanted()])
        assert [(one.error_code, one.matching_acls) for one in answer.filter_results] == [(SECURITY_DISABLED, [])]
        assert len((await bench.meta.snapshot()).rules) == 1, "nothing was done"


_ALLOW_READ = (Operation.READ, Permission.ALLOW)


async def test_an_answer_that_was_lost_is_a_timeout_and_an_absent_service_is_retriable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        for error, code in ((OutcomeUnknown("lost"), 7), (Unavailable("away"), 5)):

            async def fail(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr(bench.meta, "perform", fail)
            assert [one for one, _ in await create(bench, creation(), creation())] == [code] * 2
            answer = await bench.ask(31, 3, filters=[wanted()])
            assert [one.error_code for one in answer.filter_results] == [code]
            altered = await bench.ask(51, 0, deletions=[], upsertions=[password("alice")])
            assert [one.error_code for one in altered.results] == [code]


async def test_thousands_of_rules_are_created_described_and_deleted() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        names = [f"topic-{number}" for number in range(3_000)]
        assert await create(bench, *map(creation, names)) == [(0, "")] * 3_000
        assert sorted(await described(bench)) == sorted((name, LITERAL) for name in names)
        answer = await bench.ask(31, 3, filters=[wanted(principal_filter="User:alice")])
        assert len(answer.filter_results[0].matching_acls) == 3_000
        assert await described(bench) == []


# Users --------------------------------------------------------------------------------------------------------------
def salted(text: str, mechanism: int = SHA_256, iterations: int = 4_096) -> bytes:
    return hashlib.pbkdf2_hmac("sha256" if mechanism == SHA_256 else "sha512", text.encode(), b"salt", iterations)


def password(user: str, mechanism: int = SHA_256, iterations: int = 4_096, **more: Any) -> dict[str, Any]:
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": salted(f"secret of {user}", mechanism),
    } | more


async def alter(bench: ControlBench, *upsertions: Any, deletions: tuple[tuple[str, int], ...] = ()) -> dict[str, int]:
    answer = await bench.ask(
        51,
        0,
        deletions=[{"name": name, "mechanism": mechanism} for name, mechanism in deletions],
        upsertions=list(upsertions),
    )
    return {one.user: one.error_code for one in answer.results}


async def users(bench: ControlBench, *names: str) -> dict[str, Any]:
    answer = await bench.ask(50, 0, users=[{"name": name} for name in names] if names else None)
    assert answer.error_code == 0
    return {
        one.user: one.error_code or {info.mechanism: info.iterations for info in one.credential_infos}
        for one in answer.results
    }


async def test_a_user_is_made_described_changed_and_deleted_with_an_authorizer_or_without() -> None:
    async with control_bench() as bench:
        assert await alter(bench, password("alice"), password("bob", SHA_512, 8_192)) == {"alice": 0, "bob": 0}
        credential = bench.catalog.rights.credential("alice", ScramMechanism.SCRAM_SHA_256)
        assert credential is not None and is_password(ScramMechanism.SCRAM_SHA_256, credential, "secret of alice")
        assert credential == credential_from(ScramMechanism.SCRAM_SHA_256, salted("secret of alice"), b"salt", 4_096), (
            "known here when it is answered"
        )
        assert await users(bench) == {"alice": {SHA_256: 4_096}, "bob": {SHA_512: 8_192}}
        assert await alter(bench, password("alice", SHA_512)) == {"alice": 0}
        assert await users(bench, "alice", "carol") == {"alice": {SHA_256: 4_096, SHA_512: 4_096}, "carol": NOT_FOUND}
        assert await alter(bench, deletions=(("alice", SHA_256), ("carol", SHA_256))) == {
            "alice": 0,
            "carol": NOT_FOUND,
        }
        assert bench.catalog.rights.credential("alice", ScramMechanism.SCRAM_SHA_256) is None
        assert await users(bench, "alice") == {"alice": {SHA_512: 4_096}}


async def test_what_a_user_may_not_be_is_refused_for_that_user_alone() -> None:
    async with control_bench() as bench:
        outcomes = await alter(
            bench,
            password("good"),
            password(""),
            password("few", iterations=4_095),
            password("many", iterations=16_385),
            password("odd", 3),
            password("short", salted_password=b"x"),
            password("no-salt", salt=b""),
            password("twice"),
            password("twice", SHA_512),
            password("both"),
            deletions=(("both", SHA_512), ("absent", 0)),
        )
        assert outcomes == {
            "good": 0,
            "": UNACCEPTABLE,
            "few": UNACCEPTABLE,
            "many": UNACCEPTABLE,
            "odd": UNSUPPORTED_MECHANISM,
            "short": UNACCEPTABLE,
            "no-salt": UNACCEPTABLE,
            "twice": DUPLICATE,
            "both": DUPLICATE,
            "absent": UNSUPPORTED_MECHANISM,
        }
        assert await users(bench) == {"good": {SHA_256: 4_096}}
        assert await users(bench, "good", "good") == {"good": DUPLICATE}


async def test_no_key_and_no_password_is_in_an_answer_or_in_the_log() -> None:
    async with control_bench() as bench:
        with capture_logs() as lines:
            await alter(bench, password("alice"), password("wrong", salted_password=salted("secret of wrong") + b"x"))
            answers = [
                await bench.answer(50, 0, users=None),
                await bench.answer(51, 0, deletions=[], upsertions=[password("short", salted_password=b"secret-x")]),
            ]
        credential = bench.catalog.rights.credential("alice", ScramMechanism.SCRAM_SHA_256)
        assert credential is not None
        shown = b"".join(answers) + repr(lines).encode() + repr(credential).encode()
        for secret in (credential.stored_key, credential.server_key, salted("secret of alice"), b"secret-x"):
            assert secret not in shown and secret.hex().encode() not in shown and repr(secret).encode() not in shown
