"""Bugs of nodes that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratalog.machines.copies import leaving, leaving_survey
from stratalog.machines.plans import retirement
from stratalog.machines.table import given_up as table_given_up
from stratalog.machines.table import mounts as table_mounts
from stratalog.machines.table import nodes as table_nodes
from stratalog.machines.table import retirement as table_retirement
from stratalog.machines.table import state as table_state
from stratalog.machines.table import user_mounts as table_user_mounts
from stratalog.model.metadata import life_name
from stratalog.model.mounts import MountState, OffsetRange
from stratalog.model.retirement import LostRange, RetireMode, Sighting
from stratalog.model.segment import GapReason, RemoteState
from stratalog_node.leaving.node_verifier import NodeVerifier
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.sweep.retention import RetentionWorker
from stratalog_sim.planting import Patch


def released_after_one_check() -> list[Patch]:
    """The meta service releases a node after one clean check, without waiting for a second one."""

    def is_verified(sightings: Any, interval_ms: int, segments: int, now_ms: int) -> bool:
        return bool(sightings) and sightings[-1].is_clean and sightings[-1].segments >= segments

    return [(retirement, "is_verified", is_verified)]


def one_check_counts_twice() -> list[Patch]:
    """A check counts, whatever record it rests on."""
    report = table_retirement.report_sighting

    def report_sighting(tx: Any, command: Any) -> None:
        known = tx.state.nodes.get(command.node_id)
        record = known.retirement if known is not None else None
        report(tx, command if record is None else replace(command, seen_ms=record.last_check_ms))

    return [(table_retirement, "report_sighting", report_sighting)]


def unknown_copies_count_as_none() -> list[Patch]:
    """A check counts as clean even if it could not confirm all copies."""
    return [(Sighting, "is_clean", property(lambda self: True))]


def released_while_an_upload_is_unfinished() -> list[Patch]:
    """A segment counts as stored once its upload has begun: by the plan, the table and those who check."""
    need, confirm = leaving.need_of, NodeVerifier._confirm

    def need_of(segment: Any, *rest: Any, **tiers: Any) -> leaving.Need:
        found = need(segment, *rest, **tiers)
        is_begun = segment.remote.state is not RemoteState.NONE
        return leaving.Need.KEPT if is_begun and found in (leaving.Need.THIN, leaving.Need.ONLY_HERE) else found

    async def confirm_the_rest(self: NodeVerifier, node: Any, segment: Any, seen: Any) -> None:
        if segment.seal is None or segment.remote.state is RemoteState.NONE:
            await confirm(self, node, segment, seen)
        else:
            seen.segments += 1

    return [
        (leaving_survey, "need_of", need_of),
        (table_retirement, "need_of", need_of),
        (NodeVerifier, "_confirm", confirm_the_rest),
    ]


def freed_before_the_bucket_has_it() -> list[Patch]:
    """A node that leaves frees what it has begun to upload."""
    free_old = RetentionWorker._free_old

    async def free_more(self: RetentionWorker, view: Any) -> None:
        await free_old(self, view)
        node = self._catalog.node(self._node_id)
        record = node.retirement if node is not None else None
        if record is None or not record.is_cordoned or record.mode is RetireMode.VOLUME:
            return
        for segment in list(view.segments):
            is_begun = segment.seal is not None and segment.remote.state is RemoteState.PARTIAL
            if is_begun and view.has_local(segment.key):
                await self._copies.free_local(view, segment.key)

    return [(RetentionWorker, "_free_old", free_more)]


def two_holders_after_a_lost_answer() -> list[Patch]:
    """A holder that has not said that it serves held nothing: the next one gets the same token."""
    give = table_mounts._give

    def give_again(tx: Any, mount: Any, life: Any) -> Any:
        if life is None or mount.state is not MountState.TAKING:
            return give(tx, mount, life)
        given = replace(mount, holder=life.node_id, holder_epoch=life.epoch)
        table_mounts._put_lock(tx, mount.name, f"{life_name(life.node_id, life.epoch)}/mount", mount.token)
        tx.put_mount(given)
        return given

    return [(table_mounts, "_give", give_again)]


def holder_is_not_replaced() -> list[Patch]:
    """A node that holds a data set remains its holder after it dies."""

    def lives_changed(tx: Any) -> None:
        return None

    return [(table_nodes, "lives_changed", lives_changed), (table_retirement, "lives_changed", lives_changed)]


def cancelled_after_the_release() -> list[Patch]:
    """Each request to cancel a retirement succeeds, even after the release."""

    def cancel_retirement(tx: Any, command: Any) -> None:
        known = tx.state.nodes.get(command.node_id)
        if known is not None and known.retirement is not None:
            tx.put_node(replace(known, retirement=None))

    return [(table_retirement, "cancel_retirement", cancel_retirement)]


def mount_goes_beyond_the_seal() -> list[Patch]:
    """A manual mount ends where the newest segment begins, even if segments before that one are not sealed."""

    def up_to_the_last(entry: Any, from_ms: int, until_ms: int) -> OffsetRange:
        last = entry.segments[entry.next_epoch - 1]
        return OffsetRange(entry.log_start_offset, max(last.base_offset, entry.log_start_offset))

    return [(table_user_mounts, "_range", up_to_the_last)]


def cordon_is_not_heeded() -> list[Patch]:
    """New segments go to a node that leaves as to any other."""

    def is_staying(self: Any, node_id: int) -> bool:
        return bool(self.is_alive(node_id))

    def hosts(self: Any, wanted: int) -> list[Any]:
        return [entry.info for entry in self.nodes.values() if entry.is_alive]

    state = table_state.TableState
    return [(state, "is_staying", is_staying), (state, "hosts", hosts)]


def mount_is_read_as_its_topic() -> list[Patch]:
    """A reader of a manual mount gets the whole log."""
    mounted_shard = Catalog.mounted_shard

    def whole(self: Catalog, key: Any) -> Any:
        found = mounted_shard(self, key)
        return None if found is None else replace(found, base_offset=0, end_offset=1 << 62)

    return [(Catalog, "mounted_shard", whole)]


def given_up_silently() -> list[Patch]:
    """A node is given up by force, and the record says that nothing was lost."""

    def nothing_of(segment: Any) -> LostRange:
        return LostRange(segment.key, segment.end_offset, segment.end_offset)

    return [(table_retirement, "lost_of", nothing_of)]


def rolled_segment_of_a_dead_node_never_ends() -> list[Patch]:
    """Only what a person's word has ended gets another node as a replica, and not what its leader ended."""
    replacing_node = table_given_up._replacing_node

    def only_if_ended_by_request(tx: Any, segment: Any) -> Any:
        is_ended = any(gap.reason is GapReason.UNCLEAN for gap in segment.handed.given_up)
        return replacing_node(tx, segment) if is_ended else None

    return [(table_given_up, "_replacing_node", only_if_ended_by_request)]
