"""What people ask for: that a node leaves or stays, mounts, an even load. They ask until they are answered.

Stands in for the command line.
"""

from __future__ import annotations

from typing import Any

from stratalog.machines.copies.rebalance import plan_rebalance
from stratalog.model.commands.retirement_commands import CancelRetirement
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.metadata import Snapshot
from stratalog.model.segment import Segment
from stratalog_sim.broken import Broken
from stratalog_sim.environment.process import Ask, Process, Sleep, Task
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.node import RollToOtherSuccessor
from stratalog_sim.service.meta import Perform, Watch

_RETRY_MS = 150
_ROUND_MS = 900
MOST_ROUNDS = 12


class People(Process):
    judge: Judge
    rounds = 0
    """Of rebalancing, until nothing was to be done any more."""
    is_even = False
    was_too_late = False
    """A user cancelled a retirement after the node had been released."""

    def request(self, command: Command[Any]) -> None:
        self.spawn(self._repeat(command))

    def _repeat(self, command: Command[Any]) -> Task:
        while True:
            try:
                yield Ask("meta", Perform(command), 300)
                return
            except Rejected as refusal:
                is_released = isinstance(command, CancelRetirement) and command.node_id in self.judge.leaving.released
                self.was_too_late = self.was_too_late or is_released
                if isinstance(command, CancelRetirement) and not is_released:
                    raise Broken("a retirement can be cancelled until the release", str(refusal)) from refusal
                return
            except StratalogError:
                yield Sleep(_RETRY_MS)

    def force(self, command: Command[Any]) -> None:
        """Give up what a dead node alone has: it is refused while the node counts as alive."""
        self.spawn(self._repeat_until_accepted(command))

    def _repeat_until_accepted(self, command: Command[Any]) -> Task:
        while True:
            try:
                yield Ask("meta", Perform(command), 300)
                return
            except StratalogError:
                yield Sleep(_RETRY_MS)

    def rebalance(self) -> Task:
        """As `stratalog rebalance --seal`: until all is even, or nothing moves."""
        self.is_even = False
        for self.rounds in range(MOST_ROUNDS):
            plan = None
            while plan is None:
                try:
                    snapshot = yield Ask("meta", Watch(-1), 300)
                    assert isinstance(snapshot, Snapshot)
                    plan = plan_rebalance(snapshot)
                except StratalogError:
                    yield Sleep(_RETRY_MS)
            if not plan.moves or plan.is_even:
                self.is_even = True
                return
            for move in plan.moves:
                yield from self._roll(move.segment)
            yield Sleep(_ROUND_MS)

    def _roll(self, segment: Segment) -> Task:
        try:
            yield Ask(f"node-{segment.leader}", RollToOtherSuccessor(segment), 200)
        except StratalogError:
            return
