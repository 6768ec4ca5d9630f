"""Members of a consumer group, of the classic protocol or of the consumer protocol, consumers without a group's
membership, and others that ask for offsets.

A member joins, commits for each of its shards again and again, and leaves now and then. What it commits is a number
that no other commit has, so an answer shows which commit it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import UUID

from stratalog.kafka.messages import build, encode_entity, request_type, response_type
from stratalog.kafka.reader import read_entity
from stratalog.model.groups.group import GroupError
from stratalog_sim.product.clients import Wire
from stratalog_sim.product.groups.group_truth import GroupTruth

GROUP: Final = "readers"
ALONE: Final = tuple(f"alone{number}" for number in range(3))
"""Groups whose consumers assign their shards themselves."""
SESSION_S: Final = 1.0
_REBALANCE_MS: Final = 2_000
_BEAT_S: Final = 0.15
_LEAVES: Final = 0.08
"""How often a member leaves instead of sending its next heartbeat."""
_ALONE_S: Final = 0.8
"""The longest time between two commits of a consumer without a membership: a log without the newest one shows it."""
_FIND, _JOIN, _SYNC, _BEAT, _COMMIT, _COMMITTED, _CONSUME, _LEAVE = (
    (10, 1),
    (11, 5),
    (14, 3),
    (12, 3),
    (8, 7),
    (9, 5),
    (68, 0),
    (13, 3),
)
_MOVED: Final = (
    GroupError.NOT_COORDINATOR,
    GroupError.COORDINATOR_LOAD_IN_PROGRESS,
    GroupError.COORDINATOR_NOT_AVAILABLE,
)
_LOST: Final = OSError, TimeoutError


class GroupClient:
    def __init__(self, name: str, topic: str, shards: int, wire: Wire, truth: GroupTruth, rng: Random) -> None:
        self.name = name
        self.topic = topic
        self.shards = shards
        self.is_over = False
        self.group = GROUP
        self._wire = wire
        self._truth = truth
        self._rng = rng
        self._coordinator: tuple[str, int] | None = None
        every = wire.addresses
        wire.addresses = lambda: [self._coordinator] if self._coordinator is not None else every()

    async def _ask(self, api: tuple[int, int], **values: Any) -> Any:
        """Raises: OSError, TimeoutError; then the coordinator is looked for again."""
        key, version = api
        body = encode_entity(build(request_type(key, version), **values))
        try:
            answer = await self._wire.ask(key, version, body)
        except _LOST:
            self._coordinator = None
            raise
        return read_entity(response_type(key, version), bytes(answer))

    async def _find(self) -> bool:
        answer = await self._ask(_FIND, key=self.group, key_type=0)
        if answer.error_code.value:
            self._wire.try_next_node()
            return False
        self._wire.close()
        self._coordinator = answer.host, answer.port
        return True

    def _moved(self, error: int) -> bool:
        if error in _MOVED:
            self._coordinator = None
            self._wire.close()
        return error in _MOVED

    async def committed(self, shard: int) -> int | None:
        """The number of the commit that the group shows for the shard: 0 if there is none. None: no answer."""
        place = self.group, shard
        asked = self._truth.asked(place)
        wanted = [{"name": self.topic, "partition_indexes": [shard]}]
        answer = await self._ask(_COMMITTED, group_id=self.group, topics=wanted)
        one = answer.topics[0].partitions[0] if answer.topics else None
        error = answer.error_code.value or (one.error_code.value if one is not None else 0)
        if error or one is None:
            self._moved(error)
            return None
        number: int = max(0, one.committed_offset)
        self._truth.shown(self.name, place, number, asked)
        return number

    async def _commit(self, shard: int, generation: int, member_id: str) -> int:
        """The error code. Raises: OSError, TimeoutError."""
        place = self.group, shard
        number = self._truth.begin_commit(place)
        offset = {"partition_index": shard, "committed_offset": number, "committed_metadata": str(number)}
        answer = await self._ask(
            _COMMIT,
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=[{"name": self.topic, "partitions": [{**offset, "committed_leader_epoch": -1}]}],
        )
        error = int(answer.topics[0].partitions[0].error_code.value)
        if error == GroupError.NONE:
            self._truth.acknowledged(place, number)
        return error


class GroupMember(GroupClient):
    def __init__(self, *args: Any, topic_id: Callable[[], UUID], is_consumer: bool, now_s: Callable[[], float]) -> None:
        super().__init__(*args)
        self.is_consumer = is_consumer
        self.leaves_next = False
        """Instead of sending its next heartbeat; in any case it does so now and then."""
        self._topic_id = topic_id
        self._now_s = now_s
        self._member_id = ""
        self._generation = -1
        self._owned: tuple[int, ...] = ()
        self._has_missed_answer = False
        """An answer may have named another assignment: the next heartbeat says all, so that its answer does too."""

    async def run(self) -> None:
        while not self.is_over:
            try:
                if self._coordinator is None and not await self._find():
                    await asyncio.sleep(0.1)
                elif self.is_consumer:
                    await self._consume()
                elif await self._join():
                    await self._work()
            except _LOST:
                pass
            await asyncio.sleep(0.03 + 0.05 * self._rng.random())

    def _leaves(self) -> bool:
        leaves = self.leaves_next or self._rng.random() < _LEAVES
        self.leaves_next = False
        return leaves

    # The classic protocol -------------------------------------------------------------------------------------------
    async def _join(self) -> bool:
        answer = await self._ask(
            _JOIN,
            group_id=GROUP,
            session_timeout=round(SESSION_S * 1_000),
            rebalance_timeout=_REBALANCE_MS,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        if answer.error_code.value:
            if answer.error_code.value == GroupError.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            self._refused(answer.error_code.value)
            return False
        self._member_id, self._generation = answer.member_id, answer.generation_id
        names = [one.member_id for one in answer.members]
        given: dict[str, list[int]] = {name: [] for name in names}
        for shard in range(self.shards if names else 0):
            given[names[(shard + self._generation) % len(names)]].append(shard)
        synced = await self._ask(
            _SYNC,
            **self._place(),
            assignments=[{"member_id": name, "assignment": bytes(own)} for name, own in given.items()],
        )
        if synced.error_code.value:
            self._refused(synced.error_code.value)
            return False
        self._owned = tuple(synced.assignment)
        self._truth.assigned(self._generation, self._member_id, self._owned)
        return True

    def _place(self) -> dict[str, Any]:
        return {
            "group_id": GROUP,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": None,
        }

    def _refused(self, error: int) -> None:
        if not self._moved(error) and error in (GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH):
            self._member_id, self._generation, self._owned = "", -1, ()

    async def _work(self) -> None:
        """Until another generation begins."""
        while not self.is_over:
            if not await self._commit_all():
                return
            await asyncio.sleep(_BEAT_S * (0.5 + self._rng.random()))
            if self._leaves():
                await self._leave()
                return
            error = (await self._ask(_BEAT, **self._place())).error_code.value
            if error and not self._moved(error):
                self._refused(error)
                return
            if self._coordinator is None and not await self._find():
                return

    async def _leave(self) -> None:
        """Another member of this client joins next."""
        member_id, self._member_id, self._generation, self._owned = self._member_id, "", -1, ()
        await self._ask(_LEAVE, group_id=GROUP, members=[{"member_id": member_id, "group_instance_id": None}])

    # The consumer protocol ------------------------------------------------------------------------------------------
    async def _consume(self) -> None:
        """One heartbeat, and a commit for each shard that it leaves to this member. Or its last heartbeat."""
        begun_s = self._now_s()
        is_new = self._generation <= 0
        is_last = not is_new and self._leaves()
        if is_last:
            self._truth.gave_up(self.name, self._owned)
            self._owned = ()
        says_all = is_new or (self._has_missed_answer and not is_last)
        self._has_missed_answer = True
        answer = await self._ask(
            _CONSUME,
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=0 if is_new else -1 if is_last else self._generation,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=_REBALANCE_MS if says_all else -1,
            subscribed_topic_names=[self.topic] if says_all else None,
            server_assignor=None,
            topic_partitions=[{"topic_id": self._topic_id(), "partitions": list(self._owned)}],
        )
        error = answer.error_code.value
        if error:
            if not self._moved(error):
                self._truth.gave_up(self.name, self._owned)
                self._member_id, self._generation, self._owned = "", -1, ()
            return
        self._has_missed_answer = False
        if is_last:
            self._member_id, self._generation = "", -1
            return
        self._member_id, self._generation = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            owned = tuple(sorted(one for topic in answer.assignment.topic_partitions for one in topic.partitions))
            self._truth.gave_up(self.name, tuple(one for one in self._owned if one not in owned))
            self._owned = owned
        self._truth.owns(self.name, self._owned, begun_s, self._now_s(), SESSION_S)
        await self._commit_all()
        await asyncio.sleep(_BEAT_S * (0.5 + self._rng.random()))

    # Commits --------------------------------------------------------------------------------------------------------
    async def _commit_all(self) -> bool:
        for shard in self._owned:
            error = await self._commit(shard, self._generation, self._member_id)
            if error and not self._moved(error):
                self._refused(error)
                return False
        return True


class LoneConsumer(GroupClient):
    """Assigns shards to itself, and commits to a group that has no members. When it does not learn what came of a
    commit, it asks what is committed before it commits again."""

    def __init__(self, group: str, *args: Any) -> None:
        super().__init__(*args)
        self.group = group

    async def run(self) -> None:
        shard, is_sure = 0, True
        while not self.is_over:
            try:
                if self._coordinator is None and not await self._find():
                    pass
                elif is_sure:
                    shard, is_sure = self._rng.randrange(self.shards), False
                    is_sure = not self._moved(await self._commit(shard, -1, ""))
                else:
                    is_sure = await self.committed(shard) is not None
            except _LOST:
                continue
            await asyncio.sleep((_ALONE_S if is_sure else 0.1) * self._rng.random())


class GroupWatcher(GroupClient):
    """Asks any node what is committed: whoever answers has to know."""

    async def run(self) -> None:
        while not self.is_over:
            await asyncio.sleep(0.03 + 0.1 * self._rng.random())
            self._coordinator = None
            self._wire.try_next_node()
            self.group = self._rng.choice((GROUP, *ALONE))
            try:
                if self._rng.random() < 0.5 and not await self._find():
                    continue
                await self.committed(self._rng.randrange(self.shards))
            except _LOST:
                continue


class GroupReader(GroupClient):
    """Once all faults have ended: asks until it knows what is committed for each shard."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_all = False

    async def run(self) -> None:
        missing = [(group, shard) for group in (*ALONE, GROUP) for shard in range(self.shards)]
        while missing:
            try:
                self.group, shard = missing[-1]
                if self._coordinator is None and not await self._find():
                    await asyncio.sleep(0.1)
                elif await self.committed(shard) is not None:
                    missing.pop()
            except _LOST:
                continue
        self.has_all = True
