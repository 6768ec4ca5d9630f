"""ReadOnlyMounts that users make: the sealed data of some topics, or of some time, or of a snapshot, under another
name.

As with topics, the status says that a mount is to be made before the operator requests it. A mount that has ended is
not made again: its object says so until a user deletes it.

Pure. Source: docs/operator.md section 8; docs/scaling-spec.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stratalog.model.mounts import Mount, MountMode
from stratalog_operator.plan.actions import AddFinalizer, DropFinalizer, EndMount, MakeMount, Offer
from stratalog_operator.plan.observed import Observed, SeenMount
from stratalog_operator.plan.scope import DELETION_SECONDS, seconds_since
from stratalog_operator.resources.mount import SnapshotSource, TopicsSource
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER

CREATING: Final = "Creating"
LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999: no time is later."""


@dataclass(frozen=True, slots=True)
class MountPlan:
    offer: Offer
    mount: Mount | None = None
    """This object's."""
    is_creating: bool = False
    invalid: str = ""
    waits: str = ""
    is_over: bool = False
    """It was there, and is not any more."""


def user_mount(seen: Observed, one: SeenMount, source: TopicsSource | SnapshotSource) -> MountPlan:
    if one.is_deleting:
        return MountPlan(_ending(seen, one))
    offer = Offer()
    if FINALIZER not in one.finalizers:
        offer.actions.append(AddFinalizer("ReadOnlyMount", one.name))
    if seen.meta is None:
        return MountPlan(offer)
    mount = seen.meta.mount(one.name)
    if mount is not None:
        if mount.mode is not MountMode.HAND_MADE or not _is_ours(one):
            return MountPlan(
                offer,
                invalid=f"mount {one.name} exists already, and was not created by the operator: choose another name",
            )
        return MountPlan(offer, mount)
    if was_there(one):
        return MountPlan(offer, is_over=True)
    if why := _why_unreadable(source):
        return MountPlan(offer, invalid=why)
    names = source.topics if isinstance(source, SnapshotSource) else source.names
    absent = [name for name in names if seen.meta.topic(name) is None]
    if absent:
        return MountPlan(offer, waits=f"topic {absent[0]} is not there")
    if is_creating(one):
        lasts_ms = 0 if one.spec.ttl_seconds is None else one.spec.ttl_seconds * 1000
        offer.actions.append(_made(one.name, source, lasts_ms))
    return MountPlan(offer, is_creating=True)


def _made(name: str, source: TopicsSource | SnapshotSource, lasts_ms: int) -> MakeMount:
    if isinstance(source, SnapshotSource):
        return MakeMount(name, tuple(source.topics), 0, 0, lasts_ms, source.name)
    from_ms = 0 if source.from_time is None else _ms(source.from_time)
    until_ms = LAST_MS if source.until_time is None else _ms(source.until_time)
    return MakeMount(name, tuple(source.names), from_ms, until_ms, lasts_ms)


def is_creating(one: SeenMount) -> bool:
    return any(found.type == "Progressing" and found.reason == CREATING for found in one.status.conditions)


def was_there(one: SeenMount) -> bool:
    return bool(one.status.ranges)


def _is_ours(one: SeenMount) -> bool:
    return was_there(one) or is_creating(one)


def is_let_go(seen: Observed, one: SeenMount) -> str:
    """Why the deletion no longer waits for the meta service; empty while it waits."""
    if one.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true":
        return "a person said so by the annotation"
    if seen.meta is None and one.deleted and seconds_since(one.deleted, seen.now) >= DELETION_SECONDS:
        return f"the meta service has not answered for {DELETION_SECONDS} s: the mount may still be there"
    return ""


def _ending(seen: Observed, one: SeenMount) -> Offer:
    if FINALIZER not in one.finalizers:
        return Offer()
    why = is_let_go(seen, one)
    if not why:
        if seen.meta is None:
            return Offer()
        mount = seen.meta.mount(one.name)
        if mount is not None and mount.mode is MountMode.HAND_MADE and _is_ours(one):
            return Offer([EndMount(mount.name)])
        why = "its mount has ended"
    return Offer([DropFinalizer("ReadOnlyMount", one.name, why)])


def _why_unreadable(source: TopicsSource | SnapshotSource) -> str:
    """Times that the API server takes for ones, such as 0000-01-01T00:00:00Z; empty when there is none."""
    times = (source.from_time, source.until_time) if isinstance(source, TopicsSource) else ()
    for time in times:
        try:
            if time is not None:
                _ms(time)
        except ValueError:
            return f"{time} is not a time in the years 1 to 9999: give another time in a new object"
    return ""


def _ms(time: str) -> int:
    """Raises: ValueError."""
    return int(datetime.fromisoformat(time.upper()).timestamp() * 1000)
