"""A turn works off what was put in line, in its order, with no listener anywhere."""

from __future__ import annotations

import asyncio

from stratalog_node.buffers import Buffer, BufferPool
from stratalog_node.turn import Turn
from support.shard_rig import HandClock
from support.waiting import eventually


class Scene:
    """A turn with an item in each of its queues; `told` is what happened, in order."""

    def __init__(self) -> None:
        self.pool = BufferPool()
        self.clock, self.steady = HandClock(), HandClock()
        self.turn = Turn(self.pool, self.clock, self.steady)
        self.told: list[str] = []
        self.turn.after_shards += [lambda: self.told.append("look"), lambda: self.told.append("timer")]

    def somebody(self, name: str, *, fails: bool = False) -> Somebody:
        return Somebody(self, name, fails=fails)


class Somebody:
    """A shard, a sender and a holder of a buffer in one."""

    def __init__(self, scene: Scene, name: str, *, fails: bool) -> None:
        self._scene = scene
        self._name = name
        self._fails = fails

    def _tell(self, what: str) -> None:
        self._scene.told.append(f"{self._name} {what}")
        if self._fails:
            raise RuntimeError(what)

    def flush_pending(self, now_ms: int) -> None:
        assert now_ms == self._scene.turn.now_ms
        self._tell("flushes")
        self._scene.turn.tell_moved(self)
        self._scene.turn.tell_moved(self)

    def tell_moved(self) -> None:
        self._tell("moved")

    def send_ready(self) -> None:
        self._tell("sends")

    def give_back_buffer(self) -> None:
        self._tell("gives back")

    def turn_ended(self) -> None:
        self._tell("reads on")

    def turn_failed(self, error: Exception) -> None:
        self._scene.told.append(f"{self._name} failed: {error}")


async def test_a_turn_works_off_its_lines_in_order_however_they_were_filled() -> None:
    scene = Scene()
    turn, one = scene.turn, scene.somebody("one")
    turn.read_after_turn(one)
    turn.free_when_idle(one)
    turn.send(one)
    turn.flush(one)
    await eventually(lambda: "one reads on" in scene.told)
    order = ["flushes", "moved", "sends", "gives back", "reads on"]
    assert [line.removeprefix("one ") for line in scene.told if line.startswith("one")] == order
    assert scene.told[1:5] == ["one moved", "look", "timer", "one sends"], "those that wait look before anybody sends"
    assert (turn.number, turn.stats.turns) == (1, 1), "all of it asked for one turn"


async def test_the_number_moves_once_the_shards_are_flushed() -> None:
    scene = Scene()
    numbers: list[int] = []
    scene.turn.after_shards.append(lambda: numbers.append(scene.turn.number))
    one = scene.somebody("one")
    for _ in range(2):
        scene.turn.flush(one)
        scene.turn.run()
    assert numbers == [1, 2]


async def test_a_buffer_goes_back_only_when_its_turn_has_used_it() -> None:
    scene = Scene()
    buffer: Buffer = scene.pool.lend(1)
    scene.turn.free_after_turn(buffer)
    assert scene.pool.lent_bytes == buffer.capacity
    await eventually(lambda: scene.pool.lent_bytes == 0)


async def test_a_buffer_is_lent_as_long_as_shards_flush_fetches_look_and_answers_go() -> None:
    scene = Scene()
    lent: list[int] = []
    note = lambda *_: lent.append(scene.pool.lent_bytes)  # noqa: E731
    one = scene.somebody("one")
    for line in ("flush_pending", "tell_moved", "send_ready", "give_back_buffer"):
        setattr(one, line, note)
    scene.turn.after_shards.append(note)
    scene.turn.free_after_turn(buffer := scene.pool.lend(1))
    scene.turn.flush(one)
    scene.turn.tell_moved(one)
    scene.turn.send(one)
    scene.turn.free_when_idle(one)
    scene.turn.run()
    assert lent == [buffer.capacity] * 4 + [0]


async def test_one_items_fault_is_reported_to_it_and_stops_no_other_item() -> None:
    scene = Scene()
    broken, whole = scene.somebody("broken", fails=True), scene.somebody("whole")
    for somebody in (broken, whole):
        scene.turn.flush(somebody)
        scene.turn.tell_moved(somebody)
        scene.turn.send(somebody)
    scene.turn.run()
    assert [line for line in scene.told if line.startswith("whole")] == ["whole flushes", "whole moved", "whole sends"]
    failed = [line for line in scene.told if "failed" in line]
    assert failed == ["broken failed: flushes", "broken failed: moved", "broken failed: sends"]


async def test_a_shard_that_postpones_its_batches_is_flushed_in_the_next_turn() -> None:
    scene = Scene()
    one = scene.somebody("one")
    scene.turn.flush_next(one)
    scene.turn.run()
    assert "one flushes" not in scene.told
    await eventually(lambda: "one flushes" in scene.told)


async def test_what_is_queued_during_notifications_is_flushed_in_the_next_turn() -> None:
    scene = Scene()
    two = scene.somebody("two")

    class Listening(Somebody):
        def tell_moved(self) -> None:
            scene.turn.flush(two)

    scene.turn.tell_moved(Listening(scene, "one", fails=False))
    scene.turn.run()
    assert "two flushes" not in scene.told
    await eventually(lambda: "two flushes" in scene.told)


async def test_a_turn_reads_both_clocks_and_waiting_goes_by_the_monotonic_one() -> None:
    scene = Scene()
    scene.clock.now_ms -= 3_600_000
    scene.steady.now_ms += 5
    assert scene.turn.now_ms != scene.clock.now_ms
    scene.turn.run()
    assert (scene.turn.now_ms, scene.turn.steady_ms) == (scene.clock.now_ms, scene.steady.now_ms)


async def test_a_closed_turn_asks_for_nothing_and_does_nothing() -> None:
    scene = Scene()
    scene.turn.flush(scene.somebody("one"))
    scene.turn.close()
    scene.turn.send(scene.somebody("two"))
    await asyncio.sleep(0)
    scene.turn.run()
    assert not scene.told and scene.turn.stats.turns == 0


async def test_a_turn_that_is_held_writes_and_answers_nothing_until_it_is_let_go() -> None:
    scene = Scene()
    scene.turn.hold()
    scene.turn.flush(scene.somebody("shard"))
    scene.turn.send(scene.somebody("client"))
    for _ in range(3):
        await asyncio.sleep(0)
    scene.turn.run()
    assert scene.told == []
    scene.turn.let_go()
    scene.turn.let_go()
    await eventually(lambda: scene.told == ["shard flushes", "shard moved", "look", "timer", "client sends"])
    scene.turn.hold()
    scene.turn.close()
    scene.turn.let_go()
    scene.turn.flush(scene.somebody("late"))
    await asyncio.sleep(0)
    assert "late flushes" not in scene.told, "a closed one stays closed"
