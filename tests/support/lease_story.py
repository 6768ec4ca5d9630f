"""Plays a story of node leases: events at a leader of the meta service in, notes out, as text.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. A lease is 2,000 ms; a new leader begins at 0 and checks the time every 250 ms by itself.

    > node 1 begins life 3 on disk-a [and is lost]    in the metadata; before `> lead`: as loaded by the leader
    > lead                       this process leads from now on; its clock begins at 0
    > until MS                   the time, with all checks that are due; due changes are noted below
    > stands still until MS      the process is frozen: it gets no heartbeat and makes no check
    > store away | > store back  changes cannot be noted / can be noted again
    > 1/3 is heard [without room]  a heartbeat of life 3 of node 1; `> 1/3 says goodbye`: its last one
    > 1/3 is heard with 30 % free  of its disk
    > node 1 asks to begin on disk-b
"""

from __future__ import annotations

import re
from dataclasses import replace

from stratalog.machines.plans.node_leases import NodeLeases
from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import Life, Node, NodeInfo, Vitals

LEASE_MS = 2_000


class LeaseStory:
    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._leases: NodeLeases | None = None
        self._now_ms = 0
        self._is_store_away = False

    def play(self, told: str) -> str:
        lines: list[str] = []
        for line in told.splitlines():
            if line.startswith((">", "#")):
                lines.append(line)
            if line.startswith(">"):
                try:
                    lines += [f"  {outcome}" for outcome in self._do(line[1:].strip())]
                except StratalogError as error:
                    lines.append(f"  {type(error).__name__}: {error}")
        return "\n".join(lines) + "\n"

    def _do(self, command: str) -> list[str]:
        match command.split():
            case ["node", number, "begins", "life", epoch, "on", disk, *lost]:
                self._put(Node(int(number), disk, "host", 9092, None, int(epoch), is_alive=not lost))
            case ["lead"]:
                self._now_ms = 0
                self._leases = NodeLeases(LEASE_MS, self._nodes.values(), 0)
            case ["until", time_ms]:
                return self._pass(int(time_ms))
            case ["stands", "still", "until", time_ms]:
                self._now_ms = int(time_ms)
                return self._check_leases()
            case ["store", where]:
                self._is_store_away = where == "away"
            case [life, "is", "heard", "without", "room"]:
                self._led().heartbeat_received(_life(life), self._now_ms, has_room=False)
            case [life, "is", "heard", "with", percent, "%", "free"]:
                self._led().heartbeat_received(
                    _life(life), self._now_ms, vitals=Vitals(int(percent), 100, has_store=False)
                )
            case [life, "is", "heard"]:
                self._led().heartbeat_received(_life(life), self._now_ms)
            case [life, "says", "goodbye"]:
                self._led().heartbeat_received(_life(life), self._now_ms, is_last=True)
            case ["node", number, "asks", "to", "begin", "on", disk, *shown]:
                info, is_over = NodeInfo(int(number), disk, "host", 9092), shown == ["whose", "process", "is", "over"]
                assert is_over or not shown, f"no such command: {command}"
                self._led().check_registration(info, self._now_ms, is_process_over=is_over)
                return ["may begin"]
            case _:
                raise AssertionError(f"no such command: {command}")
        return []

    def _led(self) -> NodeLeases:
        assert self._leases is not None, "`> lead` comes first"
        return self._leases

    def _pass(self, until_ms: int) -> list[str]:
        outcomes: list[str] = []
        while self._now_ms < until_ms:
            self._now_ms = min(until_ms, self._now_ms + self._led().check_every_ms)
            outcomes += self._check_leases()
        return outcomes

    def _check_leases(self) -> list[str]:
        due = self._led().due(self._now_ms)
        if due is None:
            return []
        if not self._is_store_away:
            self._note(due)
        words = [("lost", life) for life in due.lost] + [("alive again", life) for life in due.heard]
        words += [("nearly full", life) for life in due.full] + [("roomy again", life) for life in due.roomy]
        scarce = [f"{self._now_ms}: {one.life.node_id}/{one.life.epoch} has class {one.scarcity}" for one in due.scarce]
        tail = ", not noted" if self._is_store_away else ""
        return [f"{self._now_ms}: {life.node_id}/{life.epoch} is {word}{tail}" for word, life in words] + scarce

    def _note(self, due: NoteLives) -> None:
        for lives, is_alive in ((due.lost, False), (due.heard, True)):
            for life in lives:
                if self._nodes[life.node_id].life == life:
                    self._put(replace(self._nodes[life.node_id], is_alive=is_alive))
        for lives, has_room in ((due.full, False), (due.roomy, True)):
            for life in lives:
                self._put(replace(self._nodes[life.node_id], has_room=has_room))
        for one in due.scarce:
            self._put(replace(self._nodes[one.life.node_id], scarcity=one.scarcity))

    def _put(self, node: Node) -> None:
        self._nodes[node.node_id] = node
        if self._leases is not None:
            self._leases.node_changed(node, self._now_ms)


def _life(text: str) -> Life:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    assert found is not None, f"no life: {text}"
    return Life(int(found[1]), int(found[2]))
