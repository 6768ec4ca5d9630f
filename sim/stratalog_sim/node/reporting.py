"""Reports copies that this node cannot vouch for, and sealed copies that are gone, to the meta service, again and again
until the record says so. In the simulator this takes the place of `replication/faulty_copies.py` and
`replication/lost_copy_reports.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.following.copies_to_report import (
    ENDS_SERVICE,
    has_others,
    is_damage_untold,
    is_faulty_untold,
    led_to_the_end,
    lost_untold,
)
from stratalog.machines.following.follower_events import FollowerLife
from stratalog.machines.restart.restart_events import NoteMissing
from stratalog.machines.restart.shard_restart import judge_sealed
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import StratalogError
from stratalog.model.segment import Segment
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.node.shard import LeadingNode

_POLL_MS = 250


class Reporting:
    def __init__(self, node: LeadingNode) -> None:
        self._node = node

    def run(self) -> Task:
        """Without an end."""
        node = self._node
        while True:
            yield Sleep(_POLL_MS)
            faulty = {one.key: None for one in self._faulty() if self._is_due(is_faulty_untold, one)}
            faulty |= {one.key: None for one in self._damaged() if self._is_due(is_damage_untold, one)}
            lost = [one.key for one in lost_untold(self._missing(), node.node_id)]
            with suppress(StratalogError):
                if faulty:
                    yield node.ask_meta(commands.ReportFaultyCopies(tuple(faulty)))
                if lost:
                    yield node.ask_meta(commands.ReportLostCopies(tuple(lost)))

    def _is_due(self, is_untold: Callable[..., bool], segment: Segment) -> bool:
        topic = self._node.view.topics.get(segment.key.topic_id)
        by_quorum = topic is not None and is_quorum(topic.settings)
        return is_untold(segment, self._node.node_id, by_quorum=by_quorum)

    def _faulty(self) -> Iterator[Segment]:
        node = self._node
        for key, shard in node.shards.items():
            led = list(led_to_the_end(node.view.segments(key), node.node_id))
            stop = shard.chain.stop
            gave_up = any(one.key in shard.damaged for one in node.view.segments(key))
            if (stop is not None and stop.cause in ENDS_SERVICE) or (
                gave_up and all(has_others(one, node.node_id) for one in led)
            ):
                yield from led
        for segment_key, replica in node.following.replicas.items():
            segment = node.view.segment(segment_key)
            if segment is not None and replica.machine.life is FollowerLife.FAULTY:
                yield segment

    def _damaged(self) -> Iterator[Segment]:
        for key, replica in self._node.following.replicas.items():
            segment = self._node.view.segment(key)
            if segment is not None and replica.is_damaged:
                yield segment

    def _missing(self) -> Iterator[Segment]:
        """Sealed, said to be here, and not here."""
        node = self._node
        for shard in node.view.shards.values():
            for segment in shard.segments.values():
                is_missed = node.node_id in segment.local_nodes and not node.has_sealed_copy(segment)
                if is_missed and isinstance(judge_sealed(segment, node.node_id, has_file=False), NoteMissing):
                    yield segment
