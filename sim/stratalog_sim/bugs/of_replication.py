"""Bugs of leaders, replicas and recoveries: what may be acknowledged, and what a copy proves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.fetch import FetchedPartition
from stratalog.machines.copies import recovery_rule
from stratalog.machines.copies.recovery_patience import RecoveryPatience
from stratalog.machines.following.follower_events import PromiseWritten
from stratalog.machines.leading import resigning
from stratalog.machines.leading.chain_events import SegmentEventReceived, SegmentFlushed
from stratalog.machines.leading.disk_health import DiskHealth
from stratalog.machines.leading.followers import Followers
from stratalog.machines.leading.in_sync import InSync
from stratalog.machines.leading.leader_events import IsrCommitted, LeaderEffect, ProposalReadBack
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.machines.table import lives as table_lives
from stratalog.machines.table import moves as table_moves
from stratalog.machines.table import nodes as table_nodes
from stratalog.machines.table import segments as table_segments
from stratalog.model.append import AppendFailure
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Fenced, StratalogError
from stratalog_meta.recovery_waits import RecoveryWaits
from stratalog_node.replication.following import Following
from stratalog_node.replication.replica import Replica
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.serve.fetching.fetch import PendingFetch
from stratalog_node.serve.producing import produce
from stratalog_node.shards.log import directory, new_segment
from stratalog_node.shards.read.reading import ShardReader
from stratalog_node.shards.seal.rolls import Rolls
from stratalog_node.shards.seal.sealing import Sealing
from stratalog_sim.planting import Patch


def seal_without_digest() -> list[Patch]:
    """A node records a seal without the digest of the bytes in its file."""
    make = Sealing._make_seal

    def make_seal(self: Sealing, old: Any, before: Any) -> Any:
        block = make(self, old, before)
        return replace(block, seal=replace(block.seal, digest=bytes(len(block.seal.digest))))

    return [(Sealing, "_make_seal", make_seal)]


def unknown_taken_as_refused() -> list[Patch]:
    """A client that waited when a shard stopped gets the answer that nothing was written, though that is unknown."""
    codes = {**produce.CODES, AppendFailure.OUTCOME_UNKNOWN: produce.CODES[AppendFailure.NOT_LEADER]}
    return [(produce, "CODES", codes)]


def acknowledged_before_the_roll() -> list[Patch]:
    """What follows a roll counts before the meta service knows of it."""
    advance = SegmentLeader._advance

    def _advance(self: SegmentLeader) -> list[LeaderEffect]:
        is_confirmed, self.is_confirmed = self.is_confirmed, True
        try:
            return advance(self)
        finally:
            self.is_confirmed = is_confirmed

    return [(SegmentLeader, "_advance", _advance)]


def end_reported_before_it_is_flushed() -> list[Patch]:
    """The meta service hears of an end that a power cut can take back."""

    async def flush(self: Rolls, shard: Any, old: Any) -> None:
        shard.handle(SegmentFlushed(old.key.epoch))

    return [(Rolls, "flush", flush)]


def tail_is_not_doubted() -> list[Patch]:
    """After a power cut the active segment takes batches as if nothing could be missing."""
    begin = ShardRestart.__init__

    def __init__(self: ShardRestart, node_id: int, doubted_epoch: int | None) -> None:
        begin(self, node_id, -1)

    return [(ShardRestart, "__init__", __init__)]


def high_watermark_past_a_member() -> list[Patch]:
    """acks=all counts as most of the replicas."""

    def lowest_of(self: Followers, node_ids: Any, own_offset: int) -> int:
        return self.majority(own_offset)

    return [(Followers, "lowest_of", lowest_of)]


def stale_isr_accepted() -> list[Patch]:
    """A leader takes the ISR that it heard of last, whatever its version."""

    def heard(self: InSync, members: tuple[int, ...], version: int) -> bool:
        self.members, self.version = members, version
        self._unknown, self._asked = (), None
        self._count_holders()
        return True

    return [(InSync, "isr_committed", heard)]


def unknown_proposal_taken_as_refused() -> list[Patch]:
    """An ISR that was proposed and not answered is as if it had not been."""

    async def _propose_isr(self: Sealing, shard: Any, active: Any, proposal: Any) -> None:
        try:
            taken = await self._meta.perform(commands.ProposeIsr(active.key, proposal.isr, proposal.version))
        except StratalogError:
            leader = active.leader
            event = ProposalReadBack(proposal, leader.isr, leader.isr_version, was_refused=True)
            shard.handle(SegmentEventReceived(active.key.epoch, event))
        else:
            shard.handle(SegmentEventReceived(active.key.epoch, IsrCommitted(taken.isr, taken.isr_version)))

    return [(Sealing, "_propose_isr", _propose_isr)]


def quorum_of_one() -> list[Patch]:
    """What the leader has counts as held by most."""

    def majority(self: Followers, own_offset: int) -> int:
        return own_offset

    return [(Followers, "majority", majority)]


def quorum_recovered_from_one() -> list[Patch]:
    """The first replica that answers determines the end, though another may have more that counted."""

    def majority(segment: Any) -> int:
        return 1

    return [(recovery_rule, "majority", majority)]


def producers_forgotten_at_the_successor() -> list[Patch]:
    """A node that takes over a shard starts without the sequence numbers of the shard's producers."""

    def producers_at_base(*_: Any) -> Any:
        return ()

    return [(new_segment, "producers_at_base", producers_at_base)]


def copy_proven_from_memory() -> list[Patch]:
    """A follower reports the digest of what it wrote, and flushes it when it has the time."""

    def flush(self: ReplicaCopy) -> tuple[int, int]:
        return self.scan.next_offset, self.file.size_bytes

    return [(ReplicaCopy, "flush", flush)]


def follower_reports_the_end() -> list[Patch]:
    """A replica that has not got so far tells readers that they are beyond the end."""
    turned_away = PendingFetch._turned_away

    def _turned_away(self: PendingFetch, shard: Any, wanted: Any, rack: str, code: int) -> Any:
        if code and shard is not None and not shard.is_leader and wanted.fetch_offset > shard.high_watermark:
            end = shard.high_watermark
            return FetchedPartition(wanted.partition, ErrorCode.OFFSET_OUT_OF_RANGE, end, end, shard.log_start_offset)
        return turned_away(self, shard, wanted, rack, code)

    return [(PendingFetch, "_turned_away", _turned_away)]


def batch_is_skipped() -> list[Patch]:
    """A reader begins one batch too late now and then."""
    read_hot = ShardReader.read_hot

    def read_later(self: ShardReader, shard: Any, offset: int, max_bytes: int, *rest: Any, **options: Any) -> Any:
        found = read_hot(self, shard, offset, max_bytes, *rest, **options)
        if offset % 7 == 3 and found.next_offset + 3 < shard.high_watermark:
            return read_hot(self, shard, found.next_offset, max_bytes, *rest, **options)
        return found

    return [(ShardReader, "read_hot", read_later)]


def shortened_member_votes() -> list[Patch]:
    """After a power cut a replica votes as if nothing of its tail could be missing."""

    def begin_life(tx: Any, node_id: int, **what: Any) -> Any:
        return table_lives.begin_life(tx, node_id, **{**what, "is_tail_kept": True, "is_continued": True})

    begin = Following.__init__

    def __init__(self: Following, *args: Any, **options: Any) -> None:
        begin(self, *args, **{**options, "is_tail_whole": True, "is_continued": True})

    return [(table_nodes, "begin_life", begin_life), (Following, "__init__", __init__)]


def fence_not_persisted() -> list[Patch]:
    """A node answers with a promise that is not on its disk."""

    async def _promise(self: Replica, fence: int) -> None:
        self.handle(PromiseWritten(fence))

    return [(Replica, "_promise", _promise)]


def copy_dropped_before_its_replacement() -> list[Patch]:
    """The table drops a replica that is to be replaced before another node has a copy."""

    def move_sealed(tx: Any, segment: Any, move: Any) -> None:
        gone = {*move.dropped, *(node_id for node_id in segment.local_nodes if node_id not in move.added)}
        if move.added:
            kept = tuple(one for one in segment.replicas if one not in gone)
            tx.replace_segment(segment, replace(segment, replicas=(*kept, *move.added), local_nodes=()))

    return [(table_moves, "_move_sealed", move_sealed)]


def started_again_behind_a_hand_over() -> list[Patch]:
    """A node that handed its shard over forgets that, and believes an older list."""
    leave = ShardChain._leave_to_another

    def leave_to_another(self: ShardChain, *what: Any) -> Any:
        found = leave(self, *what)
        self._left_epoch = -1
        return found

    return [(ShardChain, "_leave_to_another", leave_to_another)]


def seal_taken_for_a_fence() -> list[Patch]:
    """A leader that asks for the ISR of a segment that was sealed meanwhile gets the answer that it is fenced. It gives
    up all that it led as soon as it hears of one fence, though the metadata still name it as the leader. It then begins
    each segment again that the metadata name, even one that it has ended."""
    propose = table_segments.propose_isr

    def propose_isr(tx: Any, command: Any) -> Any:
        if tx.state.segment(command.segment).leader is None:
            raise Fenced("it has no leader any more")
        return propose(tx, command)

    def must_resign(chain: Any, segment: Any, listed: Any) -> bool:
        return resigning.must_resign(chain, segment, None)

    return [
        (table_segments, "propose_isr", propose_isr),
        (directory, "must_resign", must_resign),
        (new_segment, "_refuse_to_write_over", lambda path: None),
        *started_again_behind_a_hand_over(),
    ]


def every_member_is_waited_for() -> list[Patch]:
    """A recovery waits as long as a member sends heartbeats."""

    def due(self: RecoveryPatience, now_ms: int) -> None:
        return None

    return [(RecoveryPatience, "due", due)]


def report_of_silence_noted_late() -> list[Patch]:
    """The meta service notes the silent replicas as known to its table once it has the answer. Promises that were in
    the same write, behind the report, then count as known to the table when it performed the report."""

    async def check_waits(self: RecoveryWaits) -> None:
        patience = self._patience
        due = patience.due(self._monotonic_ms())
        if due is not None:
            patience.not_performed(due)
            await self._writer.submit(due)
            for one in due.silent:
                if one.segment in patience._waits:
                    patience._waits[one.segment].reported = frozenset(one.lives)

    return [(RecoveryWaits, "_check_waits", check_waits)]


def heartbeats_taken_for_health() -> list[Patch]:
    """A node that answers keeps what it leads, whatever its disk does."""

    def check(self: DiskHealth, *args: Any) -> None:
        return None

    return [(DiskHealth, "check", check)]
