"""Rights and users are given and taken while the leader of the meta service and nodes are killed: none that was taken
returns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.rights_commands import AlterCredentials, CreateRules, DeletedRules, DeleteRules
from stratalog.model.errors import NotFound, OutcomeUnknown, Unavailable
from stratalog.model.rights import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
)
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually

# Seven processes: the simulator's world of changing rights is what CI has of it.
pytestmark = [pytest.mark.real_etcd, pytest.mark.slow]
PATIENT = RetryPolicy(attempts=400, attempt_s=2.0, first_pause_s=0.01, longest_pause_s=0.2, silence_s=4.0)
LEADS = "stratalog_meta_leader_is_leading"
GUARDED = {
    "authorizer.class.name": "stratalog",
    "super.users": "User:admin",
    "auto.create.topics.enable": "false",
}
DENIED, ABSENT = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART


def right_to(topic: str) -> Rule:
    resource = Resource(ResourceType.TOPIC, topic, PatternType.LITERAL)
    return Rule(resource, "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW)


SEES_USERS = Rule(
    Resource(ResourceType.CLUSTER, CLUSTER_NAME), "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW
)
KEPT = "kept"
KEYS = ScramCredential(b"salt", b"s" * 32, b"k" * 32, 4_096)


class ChangingRights:
    """Gives a right to one topic after another, creates a user of its name, and takes both again."""

    def __init__(self, client: HttpMetaClient) -> None:
        self.taken: list[str] = []
        """Those of which the end was acknowledged."""
        self._client = client
        self._is_stopping = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        for number in itertools.count():
            if self._is_stopping:
                return
            topic = f"taken-{number}"
            user = UserCredential(topic, ScramMechanism.SCRAM_SHA_256, KEYS)
            with contextlib.suppress(OutcomeUnknown, Unavailable):
                await self._client.perform(CreateRules((right_to(topic),)))
                await self._client.perform(AlterCredentials(put=(user,)))
            await self._delete(user)
            (outcome,) = await self._client.perform(DeleteRules((RuleFilter(name=topic),)))
            assert isinstance(outcome, DeletedRules)
            self.taken.append(topic)

    async def _delete(self, user: UserCredential) -> None:
        """Until an answer says that it is gone."""
        while True:
            with contextlib.suppress(OutcomeUnknown):
                (error,) = await self._client.perform(AlterCredentials(deleted=(user.name,)))
                assert error is None or isinstance(error, NotFound), error
                return

    async def took_more(self, count: int = 20) -> None:
        before = len(self.taken)
        await eventually(lambda: self._task.done() or len(self.taken) >= before + count, timeout=60)
        assert not self._task.done(), f"it ended: {self._task.exception()!r}"

    async def stop(self) -> None:
        self._is_stopping = True
        await self._task


def some_of(taken: list[str]) -> list[str]:
    """The newest, and some of all: a client asks again for each topic that it asked for before."""
    return list(dict.fromkeys([*taken[:: max(1, len(taken) // 30)], *taken[-30:]]))


def codes(node: NodeProcess, topics: list[str]) -> set[int]:
    """What a client of that node hears of these topics, none of which exists."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    return {admin.list_topics(topic, timeout=30).topics[topic].error.code() for topic in topics}


def users(node: NodeProcess) -> set[str]:
    """Those that may log in there."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    return set(admin.describe_user_scram_credentials().result(30))


async def returned(node: NodeProcess, taken: list[str]) -> set[str]:
    """Users that were deleted, and that the node knows."""
    known = await asyncio.to_thread(users, node)
    assert KEPT in known
    return known & set(taken)


async def hears(node: NodeProcess, topic: str, code: int) -> None:
    """Nodes follow the metadata within a moment."""
    await eventually(lambda: codes(node, [topic]) == {code}, timeout=30)


async def killed_leader(metas: list[MetaProcess]) -> MetaProcess:
    leading: list[MetaProcess] = []

    def is_one() -> bool:
        leading[:] = [meta for meta in metas if meta.is_running and meta.metric(LEADS) == 1]
        return len(leading) == 1

    await eventually(is_one, timeout=30)
    leading[0].kill()
    return leading[0]


@pytest.mark.parametrize("three_metas", [6_000], indirect=True)
async def test_a_right_that_was_taken_returns_on_no_node_whoever_is_killed(
    three_metas: list[MetaProcess], tmp_path: Path
) -> None:
    urls = ",".join(meta.url for meta in three_metas)
    nodes = [
        NodeProcess(
            tmp_path / f"node-{number}",
            settings=GUARDED,
            verb=("node", "start"),
            arguments=("--meta", urls, "--id", str(number)),
        )
        for number in (1, 2)
    ]
    client = HttpMetaClient(urls, PATIENT)
    try:
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
        await client.perform(CreateRules((SEES_USERS,)))
        await client.perform(AlterCredentials(put=(UserCredential(KEPT, ScramMechanism.SCRAM_SHA_256, KEYS),)))
        rights = ChangingRights(client)
        seen: list[str] = []
        for number in range(2):
            await rights.took_more()
            killed = await killed_leader(three_metas)
            await rights.took_more()
            seen = some_of(rights.taken)
            # A node that hears of this one has heard of all that was before.
            await client.perform(CreateRules((right_to(f"kept-{number}"),)))
            for node in nodes:
                await hears(node, f"kept-{number}", ABSENT)
                assert await asyncio.to_thread(codes, node, seen) == {DENIED}
                assert not await returned(node, seen)
            await asyncio.to_thread(killed.start)
        nodes[0].kill()
        await asyncio.to_thread(nodes[0].start)
        assert await asyncio.to_thread(codes, nodes[0], seen) == {DENIED}
        assert not await returned(nodes[0], seen)
        await rights.stop()
        await client.perform(CreateRules((right_to("kept"),)))
        for node in nodes:
            await hears(node, "kept", ABSENT)
            assert await asyncio.to_thread(codes, node, some_of(rights.taken)) == {DENIED}
            assert not await returned(node, rights.taken)
    finally:
        await client.close()
        for node in nodes:
            node.kill()
