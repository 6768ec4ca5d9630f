"""The status of a ReadOnlyMount, made by a retirement or by a user.

Pure. Source: docs/operator.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog_operator.plan.declared.mounts import CREATING, LAST_MS, MountPlan, is_creating, user_mount
from stratalog_operator.plan.observed import MAX_RANGES, MountSums, Observed, SeenMount
from stratalog_operator.plan.release import is_mount_over
from stratalog_operator.plan.scope import Word, complete, is_paused, seconds_since
from stratalog_operator.plan.volumes import reader_pod, why_refused
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge
from stratalog_operator.resources.mount import ReadOnlyMountStatus, RetiredNodeSource

_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_UNREACHED: Final[Word] = (_UNKNOWN, "MetaUnreachable", "the meta service does not answer")
_ENDS_WITHIN_SECONDS: Final = 30
"""A mount that is needed no more has ended by then."""


def mount_status(seen: Observed, one: SeenMount) -> ReadOnlyMountStatus:
    by_hand, retired = one.spec.source.by_hand, one.spec.source.retired_node
    if by_hand is not None:
        planned = user_mount(seen, one, by_hand)
        words = _of_hand(seen, one, planned)
        mount = planned.mount
    else:
        assert retired is not None, "the definition asks for exactly one of the three"
        found = None if seen.meta is None else seen.meta.mount_of(retired.node_id)
        mount = found if found is not None and found.storage_id == retired.storage_id else None
        words = _of_retired(seen, one, retired, mount)
    conditions = merge(one.status.conditions, complete("ReadOnlyMount", words), one.generation, seen.now)
    if mount is None or seen.meta is None:
        kept = {"observed_generation": one.generation, "conditions": conditions}
        return one.status.model_copy(update=kept)
    sums = seen.meta.mount_sums.get(mount.name, MountSums())
    volume = mount.volume
    return ReadOnlyMountStatus(
        observed_generation=one.generation,
        conditions=conditions,
        holder="" if mount.holder is None else f"node {mount.holder}",
        lock_epoch=mount.token,
        endpoint="" if volume is None else f"{volume.host}:{volume.port}",
        segments=sums.segments,
        bytes=sums.bytes,
        ranges=tuple(islice(_ranges(mount), MAX_RANGES)) or sums.ranges,
        expires_at=_time(mount.expires_ms) if mount.expires_ms else None,
    )


def _ranges(mount: Mount) -> Iterator[str]:
    for topic in mount.topics:
        for shard, (base, end) in enumerate(topic.ranges):
            if end > base:
                yield f"{topic.name}/{shard} {base}..{end}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(min(at_ms, LAST_MS) // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _base(seen: Observed, one: SeenMount) -> dict[ConditionType, Word]:
    words: dict[ConditionType, Word] = {
        ConditionType.RECONCILED: (_YES, "Applied", ""),
        ConditionType.PROGRESSING: (_NO, "NothingUnderWay", ""),
        ConditionType.STALLED: (_NO, "GoesOn", ""),
        ConditionType.SOURCE_EXPIRED: (_NO, "IsThere", ""),
    }
    if one.is_deleting:
        words[ConditionType.RECONCILED] = (_NO, "Deleting", "its mount ends first")
    elif is_paused(seen):
        words[ConditionType.RECONCILED] = (_NO, "Paused", "nothing is applied until it is resumed")
    return words


def _of_hand(seen: Observed, one: SeenMount, planned: MountPlan) -> dict[ConditionType, Word]:
    words = _base(seen, one)
    if seen.meta is None:
        words[ConditionType.READY] = _UNREACHED
        if is_creating(one):
            words[ConditionType.PROGRESSING] = (_YES, CREATING, "")
        return words
    if planned.mount is not None:
        words[ConditionType.READY] = (_YES, "Serves", "")
    elif planned.is_over:
        why = f"mount {one.name} is over: delete this object"
        words[ConditionType.READY] = (_NO, "Over", why)
        words[ConditionType.SOURCE_EXPIRED] = (_YES, "Over", why)
    else:
        why = planned.invalid or planned.waits or "it is being made"
        words[ConditionType.READY] = (_NO, "NotThere", why)
        if not one.is_deleting and not is_paused(seen):
            reason = "InvalidSpec" if planned.invalid else "Waiting"
            words[ConditionType.RECONCILED] = (_NO, reason, why)
        if planned.is_creating:
            words[ConditionType.PROGRESSING] = (_YES, CREATING, "")
    return words


def _of_retired(
    seen: Observed, one: SeenMount, source: RetiredNodeSource, mount: Mount | None
) -> dict[ConditionType, Word]:
    words = _base(seen, one)
    refused = None if seen.meta is None else why_refused(seen, one, source)
    if refused is not None:
        words[ConditionType.READY] = (_NO, "NotRetired" if refused.reason == "Waiting" else "NotThere", refused.words)
        if not one.is_deleting and not is_paused(seen):
            words[ConditionType.RECONCILED] = (_NO, refused.reason, refused.words)
        return words
    if seen.meta is None:
        words[ConditionType.READY] = _UNREACHED
    elif mount is None and is_mount_over(seen, source.node_id, source.storage_id):
        why = f"the mount of node {source.node_id} has ended: delete this object"
        words[ConditionType.READY] = (_NO, "Over", why)
        words[ConditionType.SOURCE_EXPIRED] = (_YES, "Over", why)
    elif mount is None:
        words[ConditionType.READY] = (_NO, "NotMounted", "the meta service does not mount it (yet, or any more)")
    elif mount.mode is MountMode.VOLUME and mount.volume is None:
        words[ConditionType.READY] = (_NO, "VolumeNotOpen", "no pod reads the volume yet")
        words[ConditionType.PROGRESSING] = (_YES, "Opening", "")
    elif mount.state is not MountState.SERVING:
        words[ConditionType.READY] = (_NO, "NoHolder", f"mount {mount.name} is {mount.state.value}")
        words[ConditionType.PROGRESSING] = (_YES, "Taking", "")
    else:
        words[ConditionType.READY] = (_YES, "Serves", "")
    limit = seen.cluster.spec.rolling_update.readiness_timeout_seconds
    pod = reader_pod(seen, source)
    if pod is not None and not pod.is_ready and (pod.is_failing or pod.not_ready_seconds >= limit):
        why = f"pod {pod.name}, which reads the volume, does not serve: see its events and its log"
        words[ConditionType.STALLED] = (_YES, "PodNotBack", why)
    if mount is not None and one.deleted and seconds_since(one.deleted, seen.now) >= _ENDS_WITHIN_SECONDS:
        why = f"mount {mount.name} does not end while it is the only way to something"
        words[ConditionType.STALLED] = (_YES, "OnlyCopy", why)
    return words
