"""What each API answers to a client with rights, with some of them, and without; Kafka's answers are the measure.

`kafka_answers_without_rights.json` has the codes that Kafka 4.3 gave to the same requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from stratalog.kafka.subscription import read_assignment
from stratalog.machines.rights.authorizer import Authorizer, Decision
from stratalog.model.commands.rights_commands import CreateRules, DeleteRules
from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError
from stratalog.model.metadata import TopicChanged
from stratalog.model.rights import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    Principal,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
)
from stratalog_meta.service import MetaService
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.client_rights import ClientRights, RightsOfClients
from stratalog_node.serve.server import data_apis
from support.control_bench import ControlBench, control_bench
from support.group_node import GroupNode, beating, committing
from support.requests_of_each_api import ABSENT, GROUP, TOPIC, codes, decoded, frame, requests

ALICE = Principal("User", "alice")
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = 29, 30, 31
DENIED = {TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED}
APIS = {api.key: api for api in control_apis()}
ASKING = sorted(key for key, api in APIS.items() if api.needs)


def allow(operation: Operation, of_type: ResourceType, name: str, pattern: PatternType = PatternType.LITERAL) -> Rule:
    return Rule(Resource(of_type, name, pattern), str(ALICE), "*", operation, Permission.ALLOW)


def topic_rule(operation: Operation, name: str = TOPIC) -> Rule:
    return allow(operation, ResourceType.TOPIC, name)


def group_rule(operation: Operation, name: str = GROUP) -> Rule:
    return allow(operation, ResourceType.GROUP, name)


def cluster_rule(operation: Operation) -> Rule:
    return allow(operation, ResourceType.CLUSTER, CLUSTER_NAME)


@asynccontextmanager
async def guarded() -> AsyncIterator[ControlBench]:
    """A node with an authorizer, a topic, and groups."""
    async with control_bench(authorizer_class_name="stratalog", auto_create_topics_enable=True) as bench:
        groups = await GroupNode().start()
        bench.services = replace(bench.services, groups=groups.groups)
        await bench.topic(TOPIC, shards=2)
        await bench.group_log()
        await groups.groups.commit_offsets(committing(GROUP, (TOPIC, 0, 5)))
        joined = await groups.groups.consumers.heartbeat(beating(GROUP + "-consumers", "m"))
        assert joined.error is GroupError.NONE
        yield bench


def with_rules(*rules: Rule) -> ClientRights:
    return RightsOfClients(Authorizer(rules)).of(ALICE, "10.0.0.1:5000")


async def ask(
    bench: ControlBench, key: int, rights: ClientRights, topic: str = TOPIC, group: str = GROUP, **changes: Any
) -> dict[str, Any]:
    version, fields = requests(topic, group)[key]
    answer = await bench.answer_to(frame(key, version, fields | changes), rights=rights)
    return decoded(key, version, answer)


# The declarations ---------------------------------------------------------------------------------------------------
class Asked:
    """An authorizer that notes what it is asked."""

    effort = 0

    def __init__(self, answer: Callable[[ResourceType], bool]) -> None:
        self.questions: set[tuple[Operation, ResourceType]] = set()
        self._answer = answer
        self._revisions = count()

    @property
    def revision(self) -> int:
        """No decision is kept."""
        return next(self._revisions)

    def topics_seen(self, who: Principal) -> tuple[int, int]:
        return 0, 0

    def decide(self, who: Principal, host: str, operation: Operation, of_type: ResourceType, name: str) -> Decision:
        self.questions.add((operation, of_type))
        return Decision(self._answer(of_type))

    def decide_for_any(self, who: Principal, host: str, operation: Operation, of_type: ResourceType) -> bool:
        return self.decide(who, host, operation, of_type, "").is_allowed


@pytest.mark.parametrize("key", ASKING)
async def test_an_api_asks_for_the_rights_that_it_declares_and_for_no_others(key: int) -> None:
    asked: set[tuple[Operation, ResourceType]] = set()
    answers: list[Callable[[ResourceType], bool]] = [
        lambda of_type: False,
        lambda of_type: of_type is not ResourceType.CLUSTER,
        lambda of_type: of_type is not ResourceType.TOPIC,
        lambda of_type: True,
    ]
    for answer in answers:
        async with guarded() as bench:
            noted = Asked(answer)
            rights = RightsOfClients(cast(Authorizer, noted)).of(ALICE, "10.0.0.1:5000")
            for topic in (TOPIC, ABSENT):
                for changes in _more(key, is_cluster_allowed=answer(ResourceType.CLUSTER)):
                    await ask(bench, key, rights, topic, **changes)
            asked |= noted.questions
    assert asked == {(need.operation, need.of_type) for need in APIS[key].needs}


def _more(key: int, *, is_cluster_allowed: bool) -> list[dict[str, Any]]:
    """What an API is asked for the rights that its usual request does not need."""
    if key == 11:
        return [{}, {"group_id": GROUP + "-consumers"}]
    if key in (3, 60) and is_cluster_allowed:
        return [{"include_cluster_authorized_operations": False}]  # it asks for all operations otherwise
    if key in (32, 33, 44):
        node = {"resource_type": 4, "resource_name": "1"}
        return [{}, {"resources": [one | node for one in requests()[key][1]["resources"]]}]
    if key == 68:
        return [{}, {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}]
    return [{}]


def test_only_questions_without_secrets_need_no_right() -> None:
    free = {api.name for api in (*control_apis(), *data_apis()) if not api.needs}
    assert free == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
    assert {key for key, (_, _) in requests().items()} == set(ASKING)


# Each API, for a client without rights, with all that it needs, and for what does not exist --------------------------
WITHOUT = {
    2: [TOPIC_DENIED],
    3: [TOPIC_DENIED],
    8: [GROUP_DENIED],
    9: [GROUP_DENIED],
    10: [GROUP_DENIED],
    11: [GROUP_DENIED],
    12: [GROUP_DENIED],
    13: [GROUP_DENIED],
    14: [GROUP_DENIED],
    15: [GROUP_DENIED],
    16: [0],
    19: [TOPIC_DENIED],
    20: [TOPIC_DENIED],
    21: [TOPIC_DENIED],
    22: [CLUSTER_DENIED],
    23: [TOPIC_DENIED],
    29: [CLUSTER_DENIED],
    30: [CLUSTER_DENIED],
    31: [CLUSTER_DENIED],
    32: [TOPIC_DENIED],
    33: [TOPIC_DENIED],
    35: [CLUSTER_DENIED],
    37: [TOPIC_DENIED],
    42: [GROUP_DENIED],
    44: [TOPIC_DENIED],
    47: [GROUP_DENIED],
    48: [CLUSTER_DENIED],
    49: [CLUSTER_DENIED],
    50: [CLUSTER_DENIED],
    51: [CLUSTER_DENIED],
    60: [0],
    68: [GROUP_DENIED],
    69: [GROUP_DENIED],
}


def test_the_codes_are_those_that_kafka_answered() -> None:
    kafka = json.loads((Path(__file__).parent / "kafka_answers_without_rights.json").read_text())
    assert {int(key): found for key, found in kafka.items()} == WITHOUT


@pytest.mark.parametrize("key", ASKING)
async def test_without_rights_the_answer_is_the_same_for_what_exists_and_for_what_does_not(key: int) -> None:
    async with guarded() as bench:
        rights = with_rules()
        seen = []
        for topic, group in ((TOPIC, GROUP), (ABSENT, ABSENT)):
            answer = await ask(bench, key, rights, topic, group)
            assert codes(answer) == WITHOUT[key]
            text = json.dumps(answer, default=str)
            seen.append(text.replace(f'"{topic}', '"?').replace(f'"{group}', '"?'))
        assert seen[0] == seen[1]
        assert rights._stats.denied >= (2 if WITHOUT[key] != [0] else 0)


@pytest.mark.parametrize("key", ASKING)
async def test_without_rights_the_meta_service_is_not_asked_for_a_topic(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take longer for a topic that does not exist, and so tell of those that do."""
    async with guarded() as bench:
        questions: list[str] = []

        async def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
            questions.append("asked")
            raise Unavailable("the test asks nothing")

        monkeypatch.setattr(MetaService, "read_version", asked)
        monkeypatch.setattr(MetaService, "perform", asked)
        await ask(bench, key, with_rules(), ABSENT)
        assert not questions


@pytest.mark.parametrize("key", ASKING)
async def test_with_the_rights_that_it_needs_an_api_denies_nothing(key: int) -> None:
    rules = []
    for need in APIS[key].needs:
        if need.of_type is ResourceType.CLUSTER:
            rules.append(cluster_rule(need.operation))
        else:
            rules += [
                allow(need.operation, need.of_type, name, PatternType.PREFIXED) for name in (TOPIC, ABSENT, GROUP)
            ]
    async with guarded() as bench:
        for topic, group in ((TOPIC, GROUP), (ABSENT, ABSENT)):
            answer = await ask(bench, key, with_rules(*rules), topic, group)
            assert not DENIED & set(codes(answer)), answer


async def test_without_an_authorizer_every_client_may_do_everything() -> None:
    async with control_bench() as bench:
        groups = await GroupNode().start()
        bench.services = replace(bench.services, groups=groups.groups)
        await bench.topic(TOPIC, shards=2)
        for key in ASKING:
            assert not DENIED & set(codes(await ask(bench, key, RightsOfClients(None).of(ALICE, "10.0.0.1:5000"))))


# What is shown ------------------------------------------------------------------------------------------------------
async def test_metadata_of_all_topics_have_those_that_a_client_may_describe() -> None:
    async with guarded() as bench:
        for name in ("a", "b", "secret"):
            await bench.topic(name)
        rights = with_rules(topic_rule(Operation.WRITE, "a"), topic_rule(Operation.DESCRIBE, "b"))
        for version in range(13):
            answer = await bench.ask(3, version, rights=rights, topics=[] if version == 0 else None)
            assert sorted(topic.name for topic in answer.topics) == ["a", "b"]


async def test_a_topic_that_may_not_be_described_is_not_named_by_its_id() -> None:
    async with guarded() as bench:
        topic = await bench.topic("secret")
        answer = await bench.ask(3, 12, rights=with_rules(), topics=[{"topic_id": topic.topic_id, "name": None}])
        ((code, name),) = [(one.error_code, one.name) for one in answer.topics]
        assert (code, name) == (TOPIC_DENIED, None)
        gone = [{"name": None, "topic_id": topic.topic_id}]
        answer = await bench.ask(20, 6, rights=with_rules(), topics=gone, timeout_ms=5_000)
        assert [(one.error_code, one.name) for one in answer.responses] == [(TOPIC_DENIED, None)]
        seen = with_rules(topic_rule(Operation.DESCRIBE, "secret"))
        answer = await bench.ask(20, 6, rights=seen, topics=gone, timeout_ms=5_000)
        assert [(one.error_code, one.name) for one in answer.responses] == [(TOPIC_DENIED, "secret")]
        assert bench.catalog.topic("secret") is not None


async def test_a_topic_is_made_on_demand_for_clients_that_may_create_it() -> None:
    async with guarded() as bench:
        described = topic_rule(Operation.DESCRIBE, "new")
        for version in (3, 9):
            answer = await bench.ask(
                3, version, rights=with_rules(described), topics=[{"name": "new"}], allow_auto_topic_creation=True
            )
            assert [one.error_code for one in answer.topics] == [TOPIC_DENIED]
        assert bench.catalog.topic("new") is None
        may = with_rules(described, topic_rule(Operation.CREATE, "new"))
        answer = await bench.ask(3, 9, rights=may, topics=[{"name": "new"}], allow_auto_topic_creation=True)
        assert [one.error_code for one in answer.topics] == [0]
        everywhere = with_rules(topic_rule(Operation.DESCRIBE, "other"), cluster_rule(Operation.CREATE))
        answer = await bench.ask(3, 9, rights=everywhere, topics=[{"name": "other"}], allow_auto_topic_creation=True)
        assert [one.error_code for one in answer.topics] == [0]


async def test_operations_are_told_where_a_client_asks_for_them() -> None:
    async with guarded() as bench:
        rights = with_rules(topic_rule(Operation.READ), group_rule(Operation.DELETE), cluster_rule(Operation.ALTER))
        for version in range(8, 13):
            asks = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
            answer = await bench.ask(3, version, rights=rights, topics=[{"name": TOPIC}], **asks)
            told = {Operation.READ, Operation.DESCRIBE}
            assert [one.authorized_operations for one in answer.topics] == [told]
            assert answer.topics[0].partitions, "the rest of the entry is whole"
            if version <= 10:
                assert answer.authorized_operations == {Operation.ALTER, Operation.DESCRIBE}
            asks = dict.fromkeys(asks, False)
            answer = await bench.ask(3, version, rights=rights, topics=[{"name": TOPIC}], **asks)
            assert [one.authorized_operations for one in answer.topics] == [None]
        answer = await bench.ask(15, 5, rights=rights, groups=[GROUP], include_authorized_operations=True)
        assert answer.groups[0].authorized_operations == {Operation.DELETE, Operation.DESCRIBE}
        answer = await bench.ask(60, 0, rights=rights, include_cluster_authorized_operations=True)
        assert answer.authorized_operations == {Operation.ALTER, Operation.DESCRIBE}
        answer = await bench.ask(60, 0, rights=with_rules(), include_cluster_authorized_operations=True)
        assert answer.authorized_operations == set()
        answer = await bench.ask(60, 0, rights=with_rules(), include_cluster_authorized_operations=False)
        assert answer.authorized_operations is None


async def test_a_created_topic_is_not_described_to_a_client_that_may_only_create_it() -> None:
    async with guarded() as bench:
        answer = await ask(bench, 19, with_rules(topic_rule(Operation.CREATE, TOPIC + "-new")))
        ((code, shards, replicas, hidden),) = [
            (one["error_code"], one["num_partitions"], one["replication_factor"], one["topic_config_error_code"])
            for one in answer["topics"]
        ]
        assert (code, shards, replicas, hidden) == (0, -1, -1, TOPIC_DENIED)
        assert bench.catalog.topic(TOPIC + "-new") is not None


async def test_several_topics_are_each_answered_by_their_own_rights() -> None:
    async with guarded() as bench:
        await bench.topic("other")
        rights = with_rules(
            group_rule(Operation.READ),
            group_rule(Operation.DELETE),
            *(topic_rule(operation) for operation in (Operation.READ, Operation.ALTER, Operation.DELETE)),
            topic_rule(Operation.ALTER_CONFIGS),
        )
        for key in (2, 8, 9, 21, 23, 32, 33, 37, 44, 47):
            fields, others = requests(TOPIC)[key][1], requests("other")[key][1]
            both: dict[str, Any] = {}
            for name, value in fields.items():
                both[name] = value + others[name] if isinstance(value, list) else value
            if key == 9:
                (group,) = fields["groups"]
                both["groups"] = [group | {"topics": group["topics"] + others["groups"][0]["topics"]}]
            found = codes(await ask(bench, key, rights, **both))
            assert found.count(TOPIC_DENIED) == 1, (key, found)
            assert not {GROUP_DENIED, CLUSTER_DENIED} & set(found)


async def test_groups_and_their_offsets_are_listed_where_a_client_may_describe_them() -> None:
    async with guarded() as bench:
        groups = bench.services.groups
        await groups.commit_offsets(committing(GROUP, ("orders", 0, 5), ("clicks", 0, 7)))
        await groups.commit_offsets(committing("hidden", ("orders", 0, 5)))
        listed = await ask(bench, 16, with_rules(group_rule(Operation.READ)))
        assert [one["group_id"] for one in listed["groups"]] == [GROUP]
        listed = await ask(bench, 16, with_rules(cluster_rule(Operation.DESCRIBE)))
        assert sorted(one["group_id"] for one in listed["groups"]) == ["hidden", GROUP, GROUP + "-consumers"]
        rights = with_rules(group_rule(Operation.DESCRIBE), topic_rule(Operation.READ))
        everything = [{"group_id": GROUP, "topics": None}]
        found = await bench.ask(9, 8, rights=rights, groups=everything, require_stable=False)
        assert [topic.name for topic in found.groups[0].topics] == ["orders"]


async def test_a_regular_expression_finds_the_topics_that_the_member_may_describe() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        node = await GroupNode().start()
        bench.services = replace(bench.services, groups=node.groups)
        group = group_rule(Operation.READ, GROUP + "-consumers")
        regex = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
        answer = await ask(bench, 68, with_rules(group, topic_rule(Operation.READ)), **regex)
        assert answer["error_code"] == 0
        orders = node.topics.topic("orders")
        assert orders is not None
        assert [one["topic_id"] for one in answer["assignment"]["topic_partitions"]] == [orders.topic_id]


async def test_classic_members_of_a_consumer_group_are_told_of_the_topics_that_they_may_describe() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        node = await GroupNode().start()
        bench.services = replace(bench.services, groups=node.groups)
        group, orders = GROUP + "-consumers", node.topics.topic("orders")
        rights = with_rules(group_rule(Operation.READ, group), topic_rule(Operation.READ, "orders"))
        regex = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
        assert (await ask(bench, 68, rights, **regex))["error_code"] == 0
        named = await ask(bench, 11, rights, "clicks", group)
        joined = await ask(bench, 11, rights, "clicks", group, member_id=named["member_id"])
        member = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        fields = requests("clicks", group)[14][1] | member
        synced = await bench.ask(14, 5, rights=rights, **fields)
        assert (joined["error_code"], synced.error_code) == (0, 0)
        assert read_assignment(synced.assignment) == ()
        node.groups.on_change(TopicChanged(node.topics.add("hidden")))  # the expression is looked up again
        await ask(bench, 12, rights, group=group, **member)
        status = (await node.groups.consumers.describe(group)).status
        assert status is not None and orders is not None
        assert {key.topic_id for one in status.members for key in one.target} == {orders.topic_id}


# Rules that change ---------------------------------------------------------------------------------------------------
async def test_a_right_is_there_and_gone_with_the_change_that_the_node_sees() -> None:
    async with guarded() as bench:
        clients = RightsOfClients(bench.catalog.rights.authorizer)
        rights = clients.of(ALICE, "10.0.0.1:5000")
        rule = topic_rule(Operation.DESCRIBE)
        for _ in range(3):
            assert codes(await ask(bench, 2, rights)) == [TOPIC_DENIED]
            await bench.meta.perform(CreateRules((rule,)))
            await bench.shown(lambda: rule in bench.catalog.rights.authorizer)
            assert codes(await ask(bench, 2, rights)) == [0]
            await bench.meta.perform(DeleteRules((RuleFilter(),)))
            await bench.shown(lambda: rule not in bench.catalog.rights.authorizer)


def test_topics_are_seen_anew_only_after_a_rule_that_may_show_the_principal_others() -> None:
    authorizer = Authorizer()
    seen = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000").may_describe_topic
    assert seen is not None and seen.viewer == "User:alice"
    bob = replace(topic_rule(Operation.READ), principal="User:bob")
    for rule in (bob, group_rule(Operation.READ), topic_rule(Operation.ALTER_CONFIGS), cluster_rule(Operation.ALL)):
        before = seen.revision
        authorizer.add(rule)
        assert seen.revision == before, rule
    everyone = replace(topic_rule(Operation.ALL), principal="User:*", permission=Permission.DENY)
    for rule in (topic_rule(Operation.READ), topic_rule(Operation.DESCRIBE), everyone):
        for change in (authorizer.add, authorizer.remove):
            before = seen.revision
            change(rule)
            assert seen.revision != before, rule


def test_where_all_is_open_without_rules_each_rule_about_a_topic_may_hide_it_from_all() -> None:
    authorizer = Authorizer(is_open_without_rules=True)
    seen = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000").may_describe_topic
    assert seen is not None and seen("orders")
    before = seen.revision
    authorizer.add(replace(topic_rule(Operation.ALTER_CONFIGS, "orders"), principal="User:bob"))
    assert not seen("orders") and seen.revision != before


async def test_a_slice_of_decisions_ends_by_what_they_cost() -> None:
    """Two hundred lengths of prefixes make a decision cost as much as ten."""
    rules = [allow(Operation.READ, ResourceType.TOPIC, "p" * length, PatternType.PREFIXED) for length in range(1, 201)]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for rights, least, most in ((with_rules(*rules), 20, 100), (with_rules(rules[0]), 0, 3)):
        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        turns = 0
        await rights.denied(Operation.WRITE, ResourceType.TOPIC, [f"{'x' * 240}{number}" for number in range(500)])
        assert least <= turns <= most
        counting.cancel()


def test_decisions_of_all_clients_together_are_bounded() -> None:
    clients = RightsOfClients(Authorizer([topic_rule(Operation.READ)]))
    for client in range(40):
        rights = clients.of(Principal("User", f"u{client}"), f"10.0.0.{client}:1")
        for number in range(5_000):
            rights.can(Operation.READ, ResourceType.TOPIC, f"topic-{number}")
    decisions = rights._decisions
    assert decisions is not None and 1_000 < len(decisions.known) <= 100_000
    rights.can(Operation.READ, ResourceType.TOPIC, "again")
    before = len(decisions.known)
    assert not rights.can(Operation.READ, ResourceType.GROUP, "g" * 30_000)
    assert len(decisions.known) == before, "a long name would keep its bytes"


def test_decisions_about_long_names_take_a_bounded_number_of_bytes() -> None:
    rights = RightsOfClients(Authorizer()).of(ALICE, "10.0.0.1:1")
    most = 0
    for number in range(60_000):
        rights.can(Operation.READ, ResourceType.GROUP, f"{number:06}".rjust(255, "\U0001f600"))
        decisions = rights._decisions
        assert decisions is not None
        most = max(most, len(decisions.known))
    assert 1_000 < most * 255 * 4 < 32 << 20


async def test_other_requests_run_while_the_operations_of_many_groups_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded() as bench:
        turns, seen_in = 0, set()
        operations = ClientRights.operations

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def noted(rights: ClientRights, of_type: ResourceType, name: str) -> int:
            seen_in.add(turns)
            return operations(rights, of_type, name)

        monkeypatch.setattr(ClientRights, "operations", noted)
        counting = asyncio.get_running_loop().create_task(count_turns())
        rights = with_rules(allow(Operation.READ, ResourceType.GROUP, "g", PatternType.PREFIXED))
        groups = [f"g{number}" for number in range(2_000)]
        await ask(bench, 15, rights, groups=groups, include_authorized_operations=True)
        counting.cancel()
        assert len(seen_in) >= 20


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1:5000"),
        ("::ffff:10.0.0.1", "10.0.0.1:5000"),
        ("0:0:0:0:0:0:0:1", "::1:5000"),
        ("FE80::1", "fe80::1%eth0:5000"),
        ("2001:DB8:0::7", "2001:db8::7:5000"),
    ],
)
def test_a_rule_about_an_address_holds_however_the_address_is_written(host: str, peer: str) -> None:
    everywhere = topic_rule(Operation.READ)
    for permission in Permission.ALLOW, Permission.DENY:
        rule = replace(everywhere, host=host, permission=permission)
        others = [everywhere] if permission is Permission.DENY else []
        clients = RightsOfClients(Authorizer([rule, *others]))
        for address, is_here in ((peer, True), ("10.0.0.2:5000", False)):
            rights = clients.of(ALICE, address)
            is_allowed = (permission is Permission.ALLOW) == is_here
            assert rights.may_topic(Operation.READ, TOPIC) == is_allowed
            assert rights.may_some(Operation.READ, ResourceType.TOPIC) == is_allowed
