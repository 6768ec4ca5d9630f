"""Why a retirement may rightly wait once nothing is at fault: a closed list of reasons, each with its proof."""

from __future__ import annotations

from stratalog.machines.table.state import TableState
from stratalog.model.retirement import RetireMode, WaitReason


def why_waits(state: TableState, node_id: int, volumes: set[int]) -> str:
    """Of a retirement that is not done: what is wrong with that, or nothing. `volumes`: whose directories are read."""
    record = state.nodes[node_id].node.retirement
    if record is None or record.wait is None:
        return f"does not end (step: {record.step if record else None}), and reports no reason"
    others = [one.node for one in state.nodes.values() if one.info.node_id != node_id]
    stay = [one for one in others if one.is_alive and not one.is_leaving]
    earlier = [
        one
        for one in stay
        if one.retirement is not None and (one.retirement.begun_ms, one.node_id) < (record.begun_ms, node_id)
    ]
    left = [one for one in stay if one not in earlier]
    factors = [topic.replication_factor for topic in state.topics.values() if not topic.is_internal]
    racks = {one.rack for one in left} - {None}
    is_true = {
        WaitReason.LAST_NODE: not left,
        WaitReason.REPLICATION_FACTOR: len(left) < max(factors, default=1),
        WaitReason.ZONE_SPREAD: len(racks) < max(factors, default=1),
        WaitReason.NO_MOUNT_HOLDER: not stay,
        WaitReason.MOUNT_PENDING: record.mode is RetireMode.VOLUME and node_id not in volumes,
    }
    is_so = is_true.get(record.wait.reason, False)
    return "" if is_so else f"waits at {record.step} for {record.wait.reason}, which is not so: {record.wait.words}"
