"""One look at a retirement: what is observed of a snapshot of the metadata and of what nodes last said, and whether the
record says already what the plan finds.

The service's leader does it each second (`stratalog_meta/retirements.py`), the simulator in its own time.
Pure. Source: docs/scaling.md section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from stratalog.machines.leaving import is_between_holders
from stratalog.machines.leaving_survey import Survey
from stratalog.machines.leaving_turns import whose_turn
from stratalog.machines.retirement import Observed, Planned, Served, goes_before, plan, preflight
from stratalog.model.metadata import Node, Snapshot, Vitals
from stratalog.model.mounts import MountState, data_set_name
from stratalog.model.retirement import Retirement, RetireStep
from stratalog.model.topic import Topic

REMOTE_STORAGE: Final = "remote.storage.enable"
_SERVED: Final = {
    MountState.WAITING: Served.NO_HOLDER,
    MountState.TAKING: Served.PENDING,
    MountState.SERVING: Served.SERVING,
}


def is_due(node: Node) -> bool:
    return node.retirement is not None and node.retirement.step is not RetireStep.DONE


def is_tiered(topic: Topic, told: Collection[Vitals]) -> bool:
    """Whether nodes upload it, as they say; so it is held for as long as none of them has said anything."""
    if told and not any(one.has_store for one in told):
        return False
    own = topic.settings.get(REMOTE_STORAGE)
    return own == "true" if own is not None else all(one.is_tiered_by_default for one in told)


def mark_of(record: Retirement, survey: Survey) -> tuple[object, ...]:
    """As long as it is the same, a retirement does not get on."""
    remaining = (survey.open_count, survey.needed_count, survey.remaining_bytes)
    return record.step, record.begun_ms, *remaining, record.last_look_ms, record.inventory_key


def planned(
    node: Node,
    snapshot: Snapshot,
    survey: Survey,
    vitals: Mapping[int, Vitals],
    *,
    now_ms: int,
    verify_interval_ms: int,
    stalled_ms: int,
) -> Planned:
    """`now_ms` is the service's clock, `stalled_ms` how long `mark_of` has been the same. Requires: the node has a
    retirement."""
    assert node.retirement is not None, "its retirement was not requested"
    earlier = {one.node_id for one in snapshot.nodes if one.node_id != node.node_id and goes_before(one, node)}
    told = [vitals[one.node_id] for one in snapshot.nodes if one.is_alive and one.node_id in vitals]
    return plan(
        Observed(
            node,
            survey,
            preflight(node, snapshot.nodes, snapshot.topics, survey, vitals, earlier),
            now_ms,
            verify_interval_ms,
            has_store=not told or any(one.has_store for one in told),
            store_away_ms=max((one.store_away_ms for one in told), default=0),
            stalled_ms=stalled_ms,
            mount=_served(node, snapshot),
            between_holders=between_holders(node, snapshot, now_ms),
            next_look_by=whose_turn(node, snapshot.nodes, len(node.retirement.sightings)),
        )
    )


def between_holders(node: Node, snapshot: Snapshot, now_ms: int) -> int | None:
    """Another node whose data set is between two holders."""
    others = (one for one in snapshot.nodes if one.node_id != node.node_id)
    return next((one.node_id for one in others if is_between_holders(one.retirement, now_ms)), None)


def says(record: Retirement, found: Planned) -> bool:
    """Whether the record stands at that step, and waits for that reason."""
    reason = None if found.why is None else found.why.reason
    return record.step is found.step and (None if record.wait is None else record.wait.reason) is reason


def _served(node: Node, snapshot: Snapshot) -> Served:
    name = data_set_name(node.node_id)
    mount = next((one for one in snapshot.mounts if one.name == name), None)
    return Served.ABSENT if mount is None else _SERVED[mount.state]
