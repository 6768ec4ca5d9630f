"""Deliberate bugs of nodes that come and go: see `bugs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratalog.machines.copies import leaving, leaving_survey
from stratalog.machines.leading.shard_chain import ShardChain
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
from stratalog_sim.environment.process import Task
from stratalog_sim.node.leaving import Leaving
from stratalog_sim.node.retention import Retaining
from stratalog_sim.node.serving import Fetch, Serving
from stratalog_sim.worlds.simulated_machines import Shape

ONE_COPY = Shape(nodes=3, replicas=1, spares=1, trouble_ms=4_000)
SOME_COPIES = Shape(nodes=3, replicas=2, spares=1, trouble_ms=4_000)


def _released_after_one_check() -> list[Any]:
    """The meta service releases a node after one clean check, without waiting for a second one."""

    def is_verified(sightings: Any, interval_ms: int, segments: int, now_ms: int) -> bool:
        return bool(sightings) and sightings[-1].is_clean and sightings[-1].segments >= segments

    return [(retirement, "is_verified", is_verified)]


def _one_check_counts_twice() -> list[Any]:
    """Whatever look the one who tells of it has seen before."""

    def report_sighting(tx: Any, command: Any) -> None:
        known = tx.state.nodes.get(command.node_id)
        record = known.retirement if known is not None else None
        report(tx, command if record is None else replace(command, seen_ms=record.last_check_ms))

    report = table_retirement.report_sighting
    return [(table_retirement, "report_sighting", report_sighting)]


def _unknown_copies_count_as_none() -> list[Any]:
    """A check counts as clean even if it could not confirm all copies."""
    return [(Sighting, "is_clean", property(lambda self: True))]


def _released_while_an_upload_is_unfinished() -> list[Any]:
    """A segment counts as stored once its upload has begun: by the plan, the table and those who look."""

    def need_of(segment: Any, *rest: Any, **tiers: Any) -> leaving.Need:
        found = need(segment, *rest, **tiers)
        is_begun = segment.remote.state is not RemoteState.NONE
        return leaving.Need.KEPT if is_begun and found in (leaving.Need.THIN, leaving.Need.ONLY_HERE) else found

    def look(self: Leaving, node: Any, record: Any, segment: Any, seen: Any) -> Task:
        if segment.seal is None or segment.remote.state is RemoteState.NONE:
            yield from confirm(self, node, record, segment, seen)

    need, confirm = leaving.need_of, Leaving._confirm
    return [
        (leaving_survey, "need_of", need_of),
        (table_retirement, "need_of", need_of),
        (Leaving, "_confirm", look),
    ]


def _freed_before_the_bucket_has_it() -> list[Any]:
    """A node that leaves frees what it has begun to upload."""

    def retain_less(self: Retaining, shard: Any) -> Task:
        yield from retain(self, shard)
        node = self._node
        known = node.view.nodes.get(node.node_id)
        record = known.retirement if known is not None else None
        if record is None or not record.is_cordoned or record.mode is RetireMode.VOLUME:
            return
        for segment in node.view.segments(shard.key):
            is_begun = segment.seal is not None and segment.remote.state is RemoteState.PARTIAL
            if is_begun and segment.key in node.disk.files:
                node.judge.freed(node.node_id, segment.key)
                node.disk.remove(segment.key)

    retain = Retaining.retain
    return [(Retaining, "retain", retain_less)]


def _two_holders_after_a_lost_answer() -> list[Any]:
    """Whose word that it serves never came held nothing: the next one gets the same token."""

    def give_again(tx: Any, mount: Any, life: Any) -> Any:
        if life is None or mount.state is not MountState.TAKING:
            return give(tx, mount, life)
        given = replace(mount, holder=life.node_id, holder_epoch=life.epoch)
        table_mounts._put_lock(tx, mount.name, f"{life_name(life.node_id, life.epoch)}/mount", mount.token)
        tx.put_mount(given)
        return given

    give = table_mounts._give
    return [(table_mounts, "_give", give_again)]


def _holder_is_not_replaced() -> list[Any]:
    """A node that holds a data set remains its holder after it dies."""

    def lives_changed(tx: Any) -> None:
        return None

    return [(table_nodes, "lives_changed", lives_changed), (table_retirement, "lives_changed", lives_changed)]


def _taken_back_after_the_release() -> list[Any]:
    """Each request to cancel a retirement succeeds, even after the release."""

    def cancel_retirement(tx: Any, command: Any) -> None:
        known = tx.state.nodes.get(command.node_id)
        if known is not None and known.retirement is not None:
            tx.put_node(replace(known, retirement=None))

    return [(table_retirement, "cancel_retirement", cancel_retirement)]


def _mount_goes_beyond_what_is_sealed() -> list[Any]:
    """A manual mount ends where the newest segment begins, even if segments before that one are not sealed."""

    def up_to_the_last(entry: Any, from_ms: int, until_ms: int) -> OffsetRange:
        last = entry.segments[entry.next_epoch - 1]
        return OffsetRange(entry.log_start_offset, max(last.base_offset, entry.log_start_offset))

    return [(table_user_mounts, "_range", up_to_the_last)]


def _cordon_is_not_heeded() -> list[Any]:
    """New segments go to a node that leaves as to any other."""

    def is_staying(self: Any, node_id: int) -> bool:
        return bool(self.is_alive(node_id))

    def hosts(self: Any, wanted: int) -> list[Any]:
        return [entry.info for entry in self.nodes.values() if entry.is_alive]

    state = table_state.TableState
    return [(state, "is_staying", is_staying), (state, "hosts", hosts)]


def started_again_behind_a_hand_over() -> list[Any]:
    """Who handed its shard over forgets that, and believes an older list."""

    def leave_to_another(self: ShardChain, *what: Any) -> Any:
        found = leave(self, *what)
        self._left_epoch = -1
        return found

    leave = ShardChain._leave_to_another
    return [(ShardChain, "_leave_to_another", leave_to_another)]


def _mount_is_read_as_its_topic() -> list[Any]:
    """A reader of a manual mount gets the whole log."""

    def read_all(self: Serving, sender: str, request: Any, fetch: Fetch, *, is_leader: bool) -> None:
        self.read(sender, request, replace(fetch, mount=""))

    return [(Serving, "_read_mounted", read_all)]


def _what_is_given_up_is_not_written_down() -> list[Any]:
    """A node is let go by force, and the record says that nothing was lost."""

    def nothing_of(segment: Any) -> LostRange:
        return LostRange(segment.key, segment.end_offset, segment.end_offset)

    return [(table_retirement, "lost_of", nothing_of)]


def _rolled_segment_of_a_dead_node_never_ends() -> list[Any]:
    """Only what a person's word has ended gets another node as a replica, and not what its leader ended."""

    def only_if_ended_by_request(tx: Any, segment: Any) -> Any:
        is_ended = any(gap.reason is GapReason.UNCLEAN for gap in segment.handed.given_up)
        return who_makes_it_up(tx, segment) if is_ended else None

    who_makes_it_up = table_given_up._replacing_node
    return [(table_given_up, "_replacing_node", only_if_ended_by_request)]


ALL = (
    ("released after one check", "no second check", _released_after_one_check, ONE_COPY),
    ("one check counts twice", "a repeated report counts again", _one_check_counts_twice, ONE_COPY),
    ("unknown copies count as none", "releases what no node confirmed", _unknown_copies_count_as_none, ONE_COPY),
    ("released during an upload", "begun is not stored", _released_while_an_upload_is_unfinished, ONE_COPY),
    ("freed before it is stored", "who leaves frees early", _freed_before_the_bucket_has_it, ONE_COPY),
    ("two holders under a token", "an answer was lost", _two_holders_after_a_lost_answer, SOME_COPIES),
    ("holder is not replaced", "a dead one holds a data set", _holder_is_not_replaced, SOME_COPIES),
    ("cancelled after the release", "who is gone is a member", _taken_back_after_the_release, SOME_COPIES),
    ("mount beyond the seal", "what is not sealed is mounted", _mount_goes_beyond_what_is_sealed, SOME_COPIES),
    ("cordon is not heeded", "who leaves gets new segments", _cordon_is_not_heeded, SOME_COPIES),
    ("mount read as its topic", "a mount has no ends", _mount_is_read_as_its_topic, SOME_COPIES),
    ("given up silently", "what is lost is not said", _what_is_given_up_is_not_written_down, ONE_COPY),
    ("rolled segment never ended", "force does not end it", _rolled_segment_of_a_dead_node_never_ends, ONE_COPY),
    ("started again behind a hand-over", "an older list is believed", started_again_behind_a_hand_over, ONE_COPY),
)
"""Name, what it is, how it is planted, and the worlds that it is looked for in."""
