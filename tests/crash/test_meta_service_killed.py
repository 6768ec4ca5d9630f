"""`kill -9` of the meta service at any moment: what was answered is there after the restart, whole and once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import AllocateProducerIds
from stratalog_meta import open_service
from support.meta_worlds import HandClock

# Prints each answer on a line of its own. With argv[2] it kills itself at that write of the store: before it is synced,
# or after it and before any client gets its answer.
SERVICE = """
import asyncio, json, os, signal, sys, time
from pathlib import Path
from stratalog.model.commands.table_commands import (
    AcquireLock, AllocateProducerIds, CommitParts, CreateTopic, RegisterNode, RollSegment
)
from stratalog.model.commands.rights_commands import AlterCredentials, CreateRules, DeleteRules
from stratalog.model.metadata import NodeInfo, PartCommit
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemotePart
from stratalog_meta import MetaService
from stratalog_meta.stores.rocksdb import RocksStore

kill_at, moment = int(sys.argv[2]), sys.argv[3]

class KilledStore(RocksStore):
    count = 0
    async def write(self, writes):
        self.count += 1
        if self.count == kill_at and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().write(writes)
        if self.count == kill_at and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

def tell(*words):
    os.write(1, json.dumps(words).encode() + b"\\n")

async def write_a_shard(service, name, lock):
    topic = await service.perform(CreateTopic(name, shard_count=1, replication_factor=1, settings={}))
    tell("topic", name)
    shards = {shard.key: shard for shard in (await service.snapshot()).shards}
    segment = shards[topic.topic_id, 0].segments[-1]
    for offset in range(0, 40, 10):
        part = RemotePart(f"{name}-{offset}", 0, 10, offset, offset + 10)
        await service.perform(CommitParts(lock, (PartCommit(segment.key, offset, part),)))
        tell("committed", name, offset + 10)
    await service.perform(RollSegment(segment.key, 40))
    tell("rolled", name, 40)
    ids = await service.perform(AllocateProducerIds(3))
    tell("ids", ids.first, ids.end)
    rules = [
        Rule(Resource(ResourceType.TOPIC, one), "User:a", "*", Operation.READ, Permission.ALLOW)
        for one in (name, f"{name}-kept")
    ]
    await service.perform(CreateRules(tuple(rules)))
    tell("allowed", f"{name}-kept")
    await service.perform(DeleteRules((RuleFilter(name=name),)))
    tell("revoked", name)
    user = UserCredential(name, ScramMechanism.SCRAM_SHA_256, ScramCredential(b"s", b"1" * 32, b"2" * 32, 4096))
    await service.perform(AlterCredentials(put=(user,)))
    tell("user", name)
    await service.perform(AlterCredentials(deleted=(user.name,)))
    tell("user ended", name)

async def main():
    service = MetaService(KilledStore(Path(sys.argv[1])), lambda: int(time.time() * 1000))
    await service.start()
    await service.perform(RegisterNode(NodeInfo(1, "storage", "host", 9092)))
    lock = await service.perform(AcquireLock("tier/1", "node-1/1", 60_000))
    turn = 0
    while True:
        turn += 1
        prefix = f"{os.getpid()}-{turn}"
        await asyncio.gather(*(write_a_shard(service, f"{prefix}-{n}", lock) for n in range(5)))
        tell("turn", turn)

asyncio.run(main())
"""


def run_until_killed(directory: Path, kill_at: int, moment: str, after_s: float | None = None) -> list[list[object]]:
    """Everything that the service answered before it died, by its own hand or so long after its first answer."""
    command = [sys.executable, "-c", SERVICE, str(directory), str(kill_at), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        timer = None
        assert process.stdout is not None
        told = b""
        if after_s is not None:
            told = process.stdout.readline()  # its start is not what is killed here
            timer = threading.Timer(after_s, process.kill)
            timer.start()
        told += process.stdout.read()
        assert process.wait() == -signal.SIGKILL
        if timer is not None:
            timer.cancel()
    return [json.loads(line) for line in told.splitlines() if line.endswith(b"]")]


async def check(directory: Path, told: list[list[object]]) -> int:
    """Compare the restarted service with the answers. Returns: how many topics it has."""
    service = open_service(directory, HandClock())
    await service.start()
    snapshot = await service.snapshot()
    ids = {topic.name: topic.topic_id for topic in snapshot.topics}
    shards = {shard.key.topic_id: shard for shard in snapshot.shards}
    highest = 0
    allowed = {rule.resource.name for rule in snapshot.rules}
    ended = {str(answer[1]) for answer in told if answer[0] == "user ended"}
    users = {one.user for one in snapshot.credentials}
    assert not ended & users, "a user who was deleted is back"
    for answer in told:
        match answer:
            case ["topic", str(name)]:
                assert name in ids, f"topic {name} was answered and is gone"
            case ["committed", str(name), int(offset)]:
                remote = shards[ids[name]].segments[0].remote
                assert remote.commit_offset >= offset, f"{name}: commit offset {offset} was answered and is gone"
                assert [part.base_offset for part in remote.parts] == list(range(0, remote.commit_offset, 10))
            case ["rolled", str(name), int(offset)]:
                first, second = shards[ids[name]].segments
                assert (first.end_offset, second.base_offset) == (offset, offset)
            case ["allowed", str(name)]:
                assert name in allowed, f"the rule of {name} was answered and is gone"
            case ["revoked", str(name)]:
                assert name not in allowed, f"the rule of {name} was revoked and is back"
            case ["ids", int(), int(end)]:
                highest = max(highest, end)
    assert (await service.perform(AllocateProducerIds(1))).first >= highest, "producer ids were given twice"
    await service.close()
    return len(ids)


@pytest.mark.fault("metadata-store-killed-side")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kill_at", [4, 5, 9, 13])
def test_killed_on_either_side_of_a_synced_write(tmp_path: Path, kill_at: int, moment: str) -> None:
    """The 4th write holds the first topics: synced, they exist although the client got no answer; not synced, none
    does."""
    told = run_until_killed(tmp_path / "meta", kill_at, moment)
    count = asyncio.run(check(tmp_path / "meta", told))
    if kill_at == 4:
        assert not told
        assert count == (5 if moment == "after" else 0), "a group of commands is kept whole or not at all"
    else:
        assert told


def test_killed_again_and_again_at_random_moments(tmp_path: Path, crash_rounds: int) -> None:
    chance = random.Random(3)
    told: list[list[object]] = []
    rounds = max(2, crash_rounds // 4)
    for _ in range(rounds):
        told += run_until_killed(tmp_path / "meta", 0, "never", after_s=chance.random())
        asyncio.run(check(tmp_path / "meta", told))
    assert len(told) >= rounds
