"""One look at a retirement: what is observed of a snapshot of the metadata and of what nodes last said, and whether the
record is_recorded already what the plan finds.

The service's leader does it each second (`stratalog_meta/retirements.py`), the simulator in its own time.
Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.machines.copies.leaving import is_between_holders
from stratalog.machines.copies.leaving_survey import Survey
from stratalog.machines.plans.retirement import Observed, Planned, Served, goes_before, plan, preflight
from stratalog.machines.plans.verification_turns import node_on_turn
from stratalog.model.metadata import Node, Snapshot, Vitals
from stratalog.model.mounts import MountState, data_set_name
from stratalog.model.retirement import Retirement, RetireStep, WaitReason
from stratalog.model.topic import Topic

REMOTE_STORAGE: Final = "remote.storage.enable"
_SERVED: Final = {
    MountState.WAITING: Served.NO_HOLDER,
    MountState.TAKING: Served.PENDING,
    MountState.SERVING: Served.SERVING,
}


def is_due(node: Node) -> bool:
    return node.retirement is not None and node.retirement.step is not RetireStep.DONE


def is_tiered(topic: Topic, reported: Collection[Vitals]) -> bool:
    """Whether nodes upload it, as they say; so it is held for as long as none of them has said anything."""
    if reported and not any(one.has_store for one in reported):
        return False
    own = topic.settings.get(REMOTE_STORAGE)
    return own == "true" if own is not None else all(one.is_tiered_by_default for one in reported)


def mark_of(record: Retirement, survey: Survey) -> tuple[object, ...]:
    """As long as it is the same, a retirement does not get on."""
    remaining = (survey.open.count, survey.needed_count, survey.remaining_bytes)
    is_in_line = record.wait is not None and record.wait.reason is WaitReason.RELEASE_IN_PROGRESS
    return record.step, record.begun_ms, *remaining, record.last_check_ms, record.inventory_key, is_in_line


@dataclass(frozen=True, slots=True)
class Turns:
    """The node whose turn it is, for each leaving node, found once for all of them in a pass."""

    between: tuple[int, ...]
    """Released a moment ago, and not served by another node yet."""
    next_released: int | None
    """The first that is ready to be, as far as the records say."""
    looks: Mapping[int, int]
    """Of each node how many it is to look after."""

    def is_in_line(self, node_id: int) -> bool:
        """Whether another node is released before this one."""
        if any(one != node_id for one in self.between):
            return True
        return self.next_released is not None and self.next_released != node_id


def turns_of(snapshot: Snapshot, vitals: Mapping[int, Vitals], now_ms: int) -> Turns:
    """Cost: O(nodes), and O(staying nodes) for each node that is verified."""
    has_inventory = has_store(snapshot, vitals)
    ready = [one for one in snapshot.nodes if is_due(one) and _is_ready(one.retirement, has_inventory)]
    first = min(ready, key=lambda one: (_begun_ms(one), one.node_id), default=None)
    between = tuple(one.node_id for one in snapshot.nodes if is_between_holders(one.retirement, now_ms))
    staying = [one for one in snapshot.nodes if one.is_alive and not one.is_leaving]
    looks: Counter[int] = Counter()
    for node in snapshot.nodes:
        record = node.retirement
        if record is not None and record.step is RetireStep.VERIFY:
            by_node = node_on_turn(node, staying)
            if by_node is not None:
                looks[by_node] += 1
    return Turns(between, None if first is None else first.node_id, looks)


def _is_ready(record: Retirement | None, has_inventory: bool) -> bool:
    """Nothing but its turn keeps it from being released. What waits for anything else keeps no other waiting."""
    if record is None or record.step is not RetireStep.SNAPSHOT or (has_inventory and record.inventory_key is None):
        return False
    return record.wait is None or record.wait.reason is WaitReason.RELEASE_IN_PROGRESS


def _begun_ms(node: Node) -> int:
    return node.retirement.begun_ms if node.retirement is not None else 0


def has_store(snapshot: Snapshot, vitals: Mapping[int, Vitals]) -> bool:
    """Nodes that live have an object store, or none of them has said anything."""
    reported = _reported_vitals(snapshot, vitals)
    return not reported or any(one.has_store for one in reported)


def _reported_vitals(snapshot: Snapshot, vitals: Mapping[int, Vitals]) -> list[Vitals]:
    return [vitals[one.node_id] for one in snapshot.nodes if one.is_alive and one.node_id in vitals]


def planned(
    node: Node,
    snapshot: Snapshot,
    survey: Survey,
    vitals: Mapping[int, Vitals],
    turns: Turns,
    *,
    now_ms: int,
    verify_interval_ms: int,
    stalled_ms: int,
) -> Planned:
    """`turns`: of this snapshot. `now_ms` is the service's clock, `stalled_ms` how long `mark_of` has been the same.
    Requires: the node has a retirement."""
    assert node.retirement is not None, "its retirement was not requested"
    earlier = {one.node_id for one in snapshot.nodes if one.node_id != node.node_id and goes_before(one, node)}
    reported = _reported_vitals(snapshot, vitals)
    next_check_by = node_on_turn(node, snapshot.nodes)
    return plan(
        Observed(
            node,
            survey,
            preflight(node, snapshot.nodes, snapshot.topics, survey, vitals, earlier),
            now_ms,
            verify_interval_ms,
            has_store=not reported or any(one.has_store for one in reported),
            store_away_ms=max((one.store_away_ms for one in reported), default=0),
            stalled_ms=stalled_ms,
            mount=_served(node, snapshot),
            is_in_line=turns.is_in_line(node.node_id),
            next_check_by=next_check_by,
            has_other_checks=next_check_by is not None and turns.looks.get(next_check_by, 0) > 1,
        )
    )


def is_recorded(record: Retirement, found: Planned) -> bool:
    """Whether the record is at that step, and waits for that reason."""
    reason = None if found.why is None else found.why.reason
    return record.step is found.step and (None if record.wait is None else record.wait.reason) is reason


def _served(node: Node, snapshot: Snapshot) -> Served:
    name = data_set_name(node.node_id)
    mount = next((one for one in snapshot.mounts if one.name == name), None)
    return Served.ABSENT if mount is None else _SERVED[mount.state]
