"""Members of a consumer group: they join, read what they are given from where the group is, and commit how far they
are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stratalog.machines.groups.group_events import JoinAnswer, SyncAnswer
from stratalog.model.errors import StratalogError
from stratalog.model.groups.group import CommittedOffset, GroupError
from stratalog.model.ids import ShardKey
from stratalog_sim.clients.clients import Client
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.node.coordinator import SESSION_MS, Beat, Commit, Committed, Join, Sync
from stratalog_sim.node.serving import Fetch

_TIMEOUT_MS = 300
_JOIN_MS = 2 * SESSION_MS
GROUP = "readers"
_NOT_HERE = (
    GroupError.NOT_COORDINATOR,
    GroupError.COORDINATOR_LOAD_IN_PROGRESS,
    GroupError.COORDINATOR_NOT_AVAILABLE,
)


class GroupClient(Client):
    def __init__(self, shards: tuple[ShardKey, ...], **client: Any) -> None:
        super().__init__(**client)
        self.shards = shards

    def _committed(self, shard: ShardKey):  # type: ignore[no-untyped-def]  # a task with a result
        """The committed offset of a shard, or the error that the coordinator answered."""
        truth, place = self.judge.groups, (GROUP, shard)
        floor, losses = truth.floor(place), truth.losses
        answer = yield from self._ask(Committed(GROUP, shard))
        if isinstance(answer, GroupError):
            return answer
        truth.shown(place, answer[0], floor, losses)
        return answer[0]

    def _ask(self, what: Any, timeout_ms: int = _TIMEOUT_MS):  # type: ignore[no-untyped-def]
        """Of the coordinator, as far as it is known. A GroupError when there is no other answer."""
        try:
            answer = yield Ask(self.leader, what, timeout_ms)
        except StratalogError:
            self.try_next_node()
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if answer in _NOT_HERE:
            self.try_next_node()
        return answer


class GroupMember(GroupClient):
    def __init__(self, **client: Any) -> None:
        super().__init__(**client)
        self._member_id = ""
        self._generation = -1
        self._next_node = 0

    def begin(self) -> None:
        self.spawn(self._go())

    def _go(self) -> Task:
        while not self.is_over:
            shards = yield from self._join()
            if shards is None:
                yield Sleep(40 + self.scheduler.rng.randrange(60))
                continue
            yield from self._read(shards)

    def _join(self) -> Generator[Any, Any, list[ShardKey] | None]:
        """The shards to read in this generation. None: it did not come to that."""
        answer = yield from self._ask(Join(GROUP, self._member_id), _JOIN_MS)
        if not isinstance(answer, JoinAnswer) or answer.error is not GroupError.NONE:
            self._heard(answer.error if isinstance(answer, JoinAnswer) else answer)
            return None
        self._member_id, self._generation = answer.member_id, answer.generation
        given: dict[str, list[int]] = {one.member_id: [] for one in answer.members}
        names = list(given)
        for number, shard in enumerate(self.shards if names else ()):
            given[names[number % len(names)]].append(shard.shard)
        plan = tuple((name, bytes(shards)) for name, shards in given.items())
        losses = self.judge.groups.losses
        told = yield from self._ask(Sync(GROUP, self._member_id, self._generation, plan), _JOIN_MS)
        if not isinstance(told, SyncAnswer) or told.error is not GroupError.NONE:
            self._heard(told.error if isinstance(told, SyncAnswer) else told)
            return None
        shards = tuple(told.assignment)
        if losses == self.judge.groups.losses:  # else the log may have lost what was on its way here
            self.judge.groups.assigned(GROUP, self._generation, self._member_id, shards)
        return [shard for shard in self.shards if shard.shard in shards]

    def _heard(self, error: GroupError) -> None:
        if error in (GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_INSTANCE_ID):
            self._member_id = ""

    def _read(self, shards: list[ShardKey]) -> Task:
        positions: dict[ShardKey, int] = {}
        while not self.is_over:
            for shard in shards:
                if shard not in positions:
                    found = yield from self._committed(shard)
                    if isinstance(found, GroupError):
                        continue
                    positions[shard] = found.offset if isinstance(found, CommittedOffset) else 0
                moved = yield from self._read_some(shard, positions[shard])
                if moved > positions[shard]:
                    positions[shard] = moved
                    error = yield from self._commit(shard, moved)
                    if error not in (GroupError.NONE, *_NOT_HERE):
                        self._heard(error)
                        return
            error = yield from self._ask(Beat(GROUP, self._member_id, self._generation))
            if error not in (GroupError.NONE, *_NOT_HERE):
                self._heard(error)
                return
            yield Sleep(80 + self.scheduler.rng.randrange(120))

    def _read_some(self, shard: ShardKey, position: int):  # type: ignore[no-untyped-def]
        """Where it is then."""
        node = self._nodes[self._next_node % len(self._nodes)]
        try:
            fetched = yield Ask(node, Fetch(shard, position), _TIMEOUT_MS)
        except StratalogError:
            self._next_node = (self._next_node + 1) % len(self._nodes)
            return position
        if fetched.error == "out of range":
            return max(position, fetched.log_start_offset)
        if fetched.error:
            self._next_node = (self._next_node + 1) % len(self._nodes)
            return position
        self.judge.shown(self.name, shard, fetched.batches)
        return max([position, *(batch.end_offset for batch in fetched.batches)])

    def _commit(self, shard: ShardKey, offset: int):  # type: ignore[no-untyped-def]
        number = self.judge.groups.next_number()
        error = yield from self._ask(Commit(GROUP, self._member_id, self._generation, shard, offset, number))
        if error is GroupError.NONE:
            self.judge.groups.acknowledged((GROUP, shard), number)
        return error


class GroupWatcher(GroupClient):
    """Asks any node what is committed, all the time: whoever answers has to know."""

    def begin(self) -> None:
        self.spawn(self._go())

    def _go(self) -> Task:
        rng = self.scheduler.rng
        while not self.is_over:
            yield Sleep(100 + rng.randrange(200))
            self._leader = rng.randrange(len(self._nodes))
            yield from self._committed(rng.choice(self.shards))


class GroupReader(GroupClient):
    """After the faults ended: asks for the committed offset of every shard until it gets all of them."""

    def __init__(self, **client: Any) -> None:
        super().__init__(**client)
        self.has_all = False

    def begin(self) -> None:
        self.spawn(self._go())

    def _go(self) -> Task:
        for shard in self.shards:
            while isinstance((yield from self._committed(shard)), GroupError):
                yield Sleep(100)
        self.has_all = True
