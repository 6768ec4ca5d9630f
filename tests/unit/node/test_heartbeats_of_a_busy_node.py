"""A node whose event loop is busy for longer than a lease stays alive; one whose loop hangs does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from stratalog.model.errors import Fenced, Unavailable
from stratalog.model.metadata import Heard, Heartbeat, Life
from stratalog_node.heartbeats import Heartbeats
from support.waiting import eventually, eventually_sync

LIFE = Life(1, 1)
LEASE_MS = 40


class Service:
    """What hears the heartbeats, and the clock by which they are sent."""

    def __init__(self) -> None:
        self.heard: list[tuple[Heartbeat, int]] = []
        """With the thread from which each came."""
        self.refusals: list[Exception] = []
        self.now_ms = 1_000
        self.version = 1
        self.lines: list[Line] = []

    def line(self) -> Line:
        self.lines.append(Line(self))
        return self.lines[-1]

    def take(self, heartbeat: Heartbeat) -> Heard:
        if self.refusals:
            raise self.refusals.pop(0)
        self.heard.append((heartbeat, threading.get_ident()))
        return Heard(LEASE_MS, self.version)

    @property
    def count(self) -> int:
        return len(self.heard)


class Line:
    def __init__(self, service: Service) -> None:
        self._service = service
        self.is_closed = False

    async def heartbeat(self, heartbeat: Heartbeat) -> Heard:
        return self._service.take(heartbeat)

    async def close(self) -> None:
        self.is_closed = True


def beating(service: Service, on_fenced: Callable[[str], None] = lambda _: None) -> Heartbeats:
    beats = Heartbeats(Line(service), LIFE, lambda: service.now_ms, on_fenced, heartbeat_client=service.line)
    beats.start()
    return beats


def loop_stands_until(condition: Callable[[], object]) -> None:
    """Blocks the event loop of the test, which is the node's."""
    eventually_sync(condition)


@pytest.mark.fault("event-loop-node-busy")
async def test_heartbeats_continue_while_the_loop_is_blocked() -> None:
    service = Service()
    beats = beating(service)
    loop_stands_until(lambda: service.count >= 5)
    assert threading.get_ident() not in {thread for _, thread in service.heard}
    assert beats.heard_ms == service.now_ms
    await beats.close()


@pytest.mark.fault("event-loop-node-busy")
async def test_a_loop_blocked_for_too_long_stops_heartbeats_until_it_turns_again() -> None:
    service = Service()
    beats = beating(service)
    loop_stands_until(lambda: service.count >= 2)
    service.now_ms += beats.stalled_ms
    before = service.count
    loop_stands_until(lambda: service.count > before)
    service.now_ms += 1
    loop_stands_until(lambda: beats._is_stalled)
    stood = service.count
    heard_ms = beats.heard_ms
    await eventually(lambda: service.count > stood)
    assert heard_ms < service.now_ms == beats.heard_ms
    await beats.close()


async def test_one_that_is_over_notifies_the_node_on_its_own_loop() -> None:
    service = Service()
    service.refusals.append(Fenced("life 1 of node 1 is not the present one"))
    told: list[tuple[str, int]] = []
    beats = beating(service, lambda why: told.append((why, threading.get_ident())))
    await eventually(lambda: told)
    assert told == [("life 1 of node 1 is not the present one", threading.get_ident())]
    await beats.close()
    assert service.count == 0, "the goodbye of the old life would be the new one's"


async def test_faults_do_not_end_heartbeats_and_a_stop_says_goodbye_and_disconnects() -> None:
    service = Service()
    service.refusals += [Unavailable("away"), RuntimeError("a fault of ours")]
    beats = beating(service)
    loop_stands_until(lambda: service.count >= 1)
    await beats.close()
    assert [line.is_closed for line in service.lines] == [True]
    assert [heartbeat.is_last for heartbeat, _ in service.heard].index(True) == service.count - 1
    assert service.heard[-1][1] == threading.get_ident()


async def test_a_stop_before_the_first_heartbeat_leaves_no_thread_behind() -> None:
    service = Service()
    beats = beating(service)
    await beats.close()
    assert "heartbeats" not in {thread.name for thread in threading.enumerate()}
    assert all(line.is_closed for line in service.lines)


async def test_what_a_node_says_of_itself_is_noted_on_its_own_loop() -> None:
    service = Service()
    asked: set[int] = set()

    def has_room() -> bool:
        asked.add(threading.get_ident())
        return False

    beats = Heartbeats(
        Line(service), LIFE, lambda: service.now_ms, lambda _: None, has_room=has_room, heartbeat_client=service.line
    )
    beats.start()
    await eventually(lambda: service.count >= 2)
    await asyncio.sleep(0)
    await beats.close()
    assert asked == {threading.get_ident()}
    assert not service.heard[0][0].has_room


class Shown:
    """What the node's catalog shows."""

    def __init__(self) -> None:
        self.version = 1
        self.alive = True

    def is_alive(self, node_id: int) -> bool:
        assert node_id == LIFE.node_id
        return self.alive


@pytest.mark.fault("node-suspended-cut-longer")
async def test_a_node_that_was_lost_and_is_heard_again_is_not_sure_before_it_has_seen_what_was_taken_from_it() -> None:
    """Its process stood still for longer than a lease. The thread runs first, and its watch may be far behind."""
    service, shown = Service(), Shown()
    beats = Heartbeats(
        Line(service), LIFE, lambda: service.now_ms, lambda _: None, heartbeat_client=service.line, shown=shown
    )
    beats.start()
    await eventually(lambda: service.count >= 3)
    sure_ms = beats.sure_ms
    assert sure_ms == service.now_ms, "nothing is behind"

    service.now_ms += 5_000
    service.version = 5  # lost with 4, and another leads what it led
    await eventually(lambda: beats.heard_ms == service.now_ms)
    assert beats.sure_ms == sure_ms
    shown.version, shown.alive = 4, False
    assert beats.sure_ms == sure_ms
    shown.version = 6
    assert beats.sure_ms == sure_ms, "as long as it counts as lost more may be taken from it at any time"
    shown.alive = True
    assert beats.sure_ms == service.now_ms
    await beats.close()


@pytest.mark.fault("node-suspended-cut-longer")
async def test_a_node_whose_metadata_are_always_a_little_behind_is_sure_of_what_they_show() -> None:
    service, shown = Service(), Shown()
    beats = Heartbeats(
        Line(service), LIFE, lambda: service.now_ms, lambda _: None, heartbeat_client=service.line, shown=shown
    )
    beats.start()
    for _ in range(5):
        service.version += 1
        service.now_ms += 10
        before = service.count
        await eventually(lambda before=before: service.count >= before + 2)
        await eventually(lambda: beats._awaited[1] >= service.version - 1)
        assert beats.sure_ms < service.now_ms
        shown.version += 1
    assert beats.sure_ms >= service.now_ms - 10
    await beats.close()


async def test_a_thread_that_ends_by_a_fault_ends_the_life_and_says_so() -> None:
    """Heartbeats would end, and the process would continue without a lease."""

    def no_line() -> Line:
        raise OSError(24, "Too many open files")

    told: list[str] = []
    beats = Heartbeats(Line(Service()), LIFE, lambda: 0, told.append, heartbeat_client=no_line)
    beats.start()
    await eventually(lambda: told)
    assert "heartbeats" in told[0] and "Too many open files" in told[0]
    await beats.close()
