"""Deliberate bugs, each patched into the real machines (or this simulator's shells) from here alone, while it is looked
for. They show that the simulator bites: each must break a promise within 2,000 seeds.

A bug is a mistake that a programmer could make: a missing check, or one answer mistaken for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stratalog.machines.copies import recovery_rule
from stratalog.machines.following.follower_events import CopyProven, PromiseWritten
from stratalog.machines.leading import resigning
from stratalog.machines.leading.chain_events import SegmentEventReceived, SegmentFlushed
from stratalog.machines.leading.followers import Followers
from stratalog.machines.leading.in_sync import InSync
from stratalog.machines.leading.leader_events import IsrCommitted, LeaderEffect, ProposalReadBack
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.machines.table import lives as table_lives
from stratalog.machines.table import moves as table_moves
from stratalog.machines.table import nodes as table_nodes
from stratalog.machines.table import remote as table_remote
from stratalog.machines.table import segments as table_segments
from stratalog.machines.tiering import orphans, retention
from stratalog.model.append import AppendFailure
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Fenced, StratalogError
from stratalog.model.segment import RemoteState
from stratalog_sim.environment.disk import Disk, DiskFailed, DiskFile, digest_of
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.environment.store import Store
from stratalog_sim.node import node, shard, sweeping
from stratalog_sim.node import retention as retaining
from stratalog_sim.node.replica import ReplicaShell
from stratalog_sim.node.sealing import SealLine
from stratalog_sim.node.serving import Fetch, Fetched, Serving
from stratalog_sim.node.shard import ShardShell
from stratalog_sim.node.shell import NodeShell
from stratalog_sim.planting import Found, Patch, find_planted
from stratalog_sim.service.meta import MetaStore
from stratalog_sim.worlds.simulated_machines import Shape
from stratalog_sim.worlds.world import SimulatedWorld

ONE_NODE = Shape()
THREE_NODES = Shape(nodes=3, replicas=3)
TWO_COPIES = Shape(nodes=3, replicas=2)
QUORUM = Shape(nodes=3, replicas=3, is_quorum=True)
IN_SYNC = Shape(nodes=3, replicas=3, is_quorum=False)


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    what: str
    patches: Callable[[], list[Patch]]
    shape: Shape = ONE_NODE


def find(bug: Bug, seeds: range) -> Found | None:
    return find_planted(bug.patches, lambda seed: SimulatedWorld(seed, bug.shape), seeds)


# The bugs -------------------------------------------------------------------------------------------------------------
def _seal_without_digest() -> list[Patch]:
    """A node records a seal without the digest of the bytes in its file."""
    make = SealLine.make

    def make_seal(self: SealLine, *args: Any) -> Any:
        record = make(self, *args)
        return None if record is None else replace(record, digest=b"none")

    return [(SealLine, "make", make_seal)]


def _upload_above_high_watermark() -> list[Patch]:
    """All that is in the file goes up."""

    def committed_end(self: ShardShell, key: Any) -> int:
        leaders = [*self.chain.ended, *filter(None, [self.chain.active])]
        found = next((one.end_offset for one in leaders if one.key == key), None)
        return committed(self, key) if found is None else found

    committed = ShardShell.committed_end
    return [(ShardShell, "committed_end", committed_end)]


def _delete_before_commit() -> list[Patch]:
    """A sealed copy counts as stored once its upload has begun."""

    def to_free(segments: Any, has_local: Any, active_bytes: int, limits: Any, now_ms: int) -> Any:
        begun = [
            replace(one, remote=replace(one.remote, state=RemoteState.COMPLETE))
            if one.seal is not None and one.remote.state is not RemoteState.NONE
            else one
            for one in segments
        ]
        return retention.local_copies_to_free(begun, has_local, active_bytes, limits, now_ms)

    def forget_local(tx: Any, command: Any) -> Iterator[None]:
        for key in command.segments:
            segment = tx.state.segment(key)
            others = tuple(one for one in segment.local_nodes if one != command.node_id)
            tx.replace_segment(segment, replace(segment, local_nodes=others))
        yield

    return [(retaining, "local_copies_to_free", to_free), (table_segments, "forget_local", forget_local)]


def _unknown_taken_as_refused() -> list[Patch]:
    """A client that waited when a shard stopped gets the answer that nothing was written, though that is unknown."""
    answer = ShardShell._answer

    def _answer(self: ShardShell, batch: Any, what: Any) -> None:
        answer(self, batch, AppendFailure.WRITE_FAILED if what is AppendFailure.OUTCOME_UNKNOWN else what)

    return [(ShardShell, "_answer", _answer)]


def _acknowledged_before_the_roll() -> list[Patch]:
    """What follows a roll counts before the meta service knows of it."""
    advance = SegmentLeader._advance

    def _advance(self: SegmentLeader) -> list[LeaderEffect]:
        is_confirmed, self.is_confirmed = self.is_confirmed, True
        try:
            return advance(self)
        finally:
            self.is_confirmed = is_confirmed

    return [(SegmentLeader, "_advance", _advance)]


def _end_reported_before_it_is_flushed() -> list[Patch]:
    """The meta service hears of an end that a power cut can take back."""

    def _flush_ended(self: ShardShell, key: Any) -> Task:
        yield Sleep(1)
        self.step(SegmentFlushed(key.epoch))

    return [(ShardShell, "_flush_ended", _flush_ended)]


def _tail_is_not_doubted() -> list[Patch]:
    """After a power cut the active segment takes batches as if nothing could be missing."""
    begin = ShardRestart.__init__

    def __init__(self: ShardRestart, node_id: int, doubted_epoch: int | None) -> None:
        begin(self, node_id, -1)

    return [(ShardRestart, "__init__", __init__)]


def _high_watermark_past_a_member() -> list[Patch]:
    """acks=all counts as most of the replicas."""

    def lowest_of(self: Followers, node_ids: Any, own_offset: int) -> int:
        return self.majority(own_offset)

    return [(Followers, "lowest_of", lowest_of)]


def _stale_isr_accepted() -> list[Patch]:
    """A leader takes the ISR that it heard of last, whatever its version."""

    def heard(self: InSync, members: tuple[int, ...], version: int) -> bool:
        self.members, self.version = members, version
        self._unknown, self._asked = (), None
        self._count_holders()
        return True

    return [(InSync, "isr_committed", heard)]


def _unknown_proposal_taken_as_refused() -> list[Patch]:
    """An ISR that was proposed and not answered is as if it had not been."""

    def _propose(self: ShardShell, key: Any, proposal: Any) -> Task:
        try:
            taken = yield self.node.ask_meta(commands.ProposeIsr(key, proposal.isr, proposal.version))
        except StratalogError:
            leader = next((one for one in self.chain._led if one.key == key), None)
            if leader is not None:
                event = ProposalReadBack(proposal, leader.isr, leader.isr_version, was_refused=True)
                self.step(SegmentEventReceived(key.epoch, event))
        else:
            self.step(SegmentEventReceived(key.epoch, IsrCommitted(taken.isr, taken.isr_version)))

    return [(ShardShell, "_propose", _propose)]


def _shortened_member_votes() -> list[Patch]:
    """After a power cut a replica votes as if nothing of its tail could be missing."""

    def begin_life(tx: Any, node_id: int, **what: Any) -> Any:
        return table_lives.begin_life(tx, node_id, **{**what, "is_tail_kept": True, "is_continued": True})

    begin = ReplicaShell.__init__

    def __init__(self: ReplicaShell, node_of: Any, key: Any, *, is_fsync: bool, is_tail_whole: bool) -> None:
        begin(self, node_of, key, is_fsync=is_fsync, is_tail_whole=True)

    return [(table_nodes, "begin_life", begin_life), (ReplicaShell, "__init__", __init__)]


def _fence_not_persisted() -> list[Patch]:
    """A node answers with a promise that is not on its disk."""

    def _write_promise(self: ReplicaShell, fence: int) -> None:
        self.step(PromiseWritten(fence))

    return [(ReplicaShell, "_write_promise", _write_promise)]


def _quorum_of_one() -> list[Patch]:
    """What the leader has counts as held by most."""

    def majority(self: Followers, own_offset: int) -> int:
        return own_offset

    return [(Followers, "majority", majority)]


def _quorum_recovered_from_one() -> list[Patch]:
    """Whoever answers first names the end, though another may have more that counted."""

    def majority(segment: Any) -> int:
        return 1

    return [(recovery_rule, "majority", majority)]


def _producers_forgotten_at_the_successor() -> list[Patch]:
    """A node that takes over a shard starts without the sequence numbers of the shard's producers."""

    def producers_before(node_of: Any, segment: Any) -> Any:
        return ()

    return [(shard, "producers_before", producers_before)]


def _any_holder_uploads() -> list[Patch]:
    """Any node that holds a copy of a segment may commit what it uploaded."""

    def check_uploader(tx: Any, segment: Any, caller: Any) -> None:
        return None

    def uploads_segment(self: NodeShell, segment: Any) -> bool:
        return segment.key in self.disk.files

    return [(table_remote, "_check_uploader", check_uploader), (NodeShell, "uploads_segment", uploads_segment)]


def _uncommitted_upload_is_swept() -> list[Patch]:
    """An object that the metadata do not name counts as an orphan, even if a node is about to commit it."""

    def judge_all(one: Any, facts: Any, *_: Any) -> Any:
        return orphans.Verdict.WAIT if one.key in facts.referenced else orphans.Verdict.ORPHAN

    return [(sweeping, "classify_object", judge_all)]


def _commit_of_a_refused_put() -> list[Patch]:
    """A put that was refused is taken for one whose answer was lost."""

    def put(self: Store, key: str, body: Any) -> None:
        if self.scheduler.rng.random() < 0.9:
            self.objects[key] = body

    return [(Store, "put", put)]


def _copy_proven_from_memory() -> list[Patch]:
    """A follower tells the digest of what it wrote, and flushes it when it has the time."""

    def _prove(self: ReplicaShell, end_offset: int) -> None:
        file = self.node.disk.files.get(self.key)
        if file is None:
            prove(self, end_offset)
            return
        batches = file.whole(self.key)
        self.step(CopyProven(sum(batch.size_bytes for batch in batches), digest_of(batches)))

    prove = ReplicaShell._prove
    return [(ReplicaShell, "_prove", _prove)]


def _follower_reports_the_end() -> list[Patch]:
    """A replica that has not got so far tells readers that they are beyond the end."""

    def _read_copy(self: Serving, sender: str, request: Any, fetch: Fetch, start: int) -> None:
        self._node.reply(sender, request, Fetched((), 0, start, "out of range"))

    return [(Serving, "_read_copy", _read_copy)]


def _metadata_acknowledged_before_they_are_kept() -> list[Patch]:
    """The meta service answers, and forgets some of what it said last when it dies."""
    load = MetaStore.load

    def load_some(self: MetaStore) -> Any:
        del self.unfolded[len(self.unfolded) // 2 :]
        return load(self)

    return [(MetaStore, "load", load_some)]


def _batch_is_skipped() -> list[Patch]:
    """A reader of a copy begins one batch too late now and then."""
    committed = ShardShell.committed_batches

    def committed_batches(self: ShardShell, key: Any, from_offset: int) -> Any:
        found = committed(self, key, from_offset)
        return found[1:] if len(found) > 3 else found

    return [(ShardShell, "committed_batches", committed_batches)]


def _copy_dropped_before_its_replacement() -> list[Patch]:
    """The table drops a replica that is to be replaced before another node has a copy."""

    def move_sealed(tx: Any, segment: Any, move: Any) -> None:
        gone = {*move.dropped, *(node_id for node_id in segment.local_nodes if node_id not in move.added)}
        if move.added:
            kept = tuple(one for one in segment.replicas if one not in gone)
            tx.replace_segment(segment, replace(segment, replicas=(*kept, *move.added), local_nodes=()))

    return [(table_moves, "_move_sealed", move_sealed)]


def _seal_taken_for_a_fence() -> list[Patch]:
    """A leader that asks for the ISR of a segment that was sealed meanwhile gets the answer that it is fenced. It gives
    up all that it led as soon as it hears of one fence, though the metadata still name it as the leader. It then begins
    each segment again that the metadata name, even one that it has ended."""

    def propose_isr(tx: Any, command: Any) -> Any:
        if tx.state.segment(command.segment).leader is None:
            raise Fenced("it has no leader any more")
        return propose(tx, command)

    def must_resign(chain: Any, segment: Any, listed: Any) -> bool:
        return resigning.must_resign(chain, segment, None)

    def make(self: Disk, key: Any, *, is_ahead: bool = False) -> None:
        self.touch()
        if self.is_full:
            raise DiskFailed("no space left")
        self.files[key] = DiskFile(is_ahead=is_ahead)

    propose = table_segments.propose_isr
    return [
        (table_segments, "propose_isr", propose_isr),
        (node, "must_resign", must_resign),
        (Disk, "make", make),
        *_started_again_behind_a_hand_over(),
    ]


def _started_again_behind_a_hand_over() -> list[Patch]:
    """Who handed its shard over forgets that, and believes an older list."""
    leave = ShardChain._leave_to_another

    def leave_to_another(self: ShardChain, *what: Any) -> Any:
        found = leave(self, *what)
        self._left_epoch = -1
        return found

    return [(ShardChain, "_leave_to_another", leave_to_another)]


BUGS = {
    bug.name: bug
    for bug in (
        Bug("seal without digest", "a seal record without a proof", _seal_without_digest),
        Bug("upload above HW", "uploads what may still be lost", _upload_above_high_watermark),
        Bug("delete before commit", "deletes a copy before the store has it", _delete_before_commit),
        Bug("unknown taken as refused", "reports a written batch as refused", _unknown_taken_as_refused),
        Bug("acknowledged before the roll", "acknowledges in an unknown segment", _acknowledged_before_the_roll),
        Bug(
            "end reported before it is flushed",
            "a power cut takes back a known end",
            _end_reported_before_it_is_flushed,
        ),
        Bug("tail not doubted", "an offset is given twice in an epoch", _tail_is_not_doubted),
        Bug("HW past a member", "acknowledged before all in sync have it", _high_watermark_past_a_member, IN_SYNC),
        Bug("stale ISR accepted", "an older ISR takes the place of a newer", _stale_isr_accepted, IN_SYNC),
        Bug(
            "unknown proposal taken as refused",
            "an ISR that the service took is forgotten",
            _unknown_proposal_taken_as_refused,
            IN_SYNC,
        ),
        Bug("quorum of one", "acknowledged before most have it", _quorum_of_one, QUORUM),
        Bug("quorum recovered from one", "one voice names the end", _quorum_recovered_from_one, QUORUM),
        Bug(
            "producers forgotten at the successor",
            "what is repeated gets in twice",
            _producers_forgotten_at_the_successor,
            THREE_NODES,
        ),
        Bug("any holder uploads", "two nodes commit the same", _any_holder_uploads, THREE_NODES),
        Bug("uncommitted upload is swept", "metadata name what is swept", _uncommitted_upload_is_swept),
        Bug("commit of a refused put", "metadata name what is not there", _commit_of_a_refused_put),
        Bug("copy proven from memory", "a listed copy is not on its disk", _copy_proven_from_memory, THREE_NODES),
        Bug("follower reports the end", "readers are sent back", _follower_reports_the_end, THREE_NODES),
        Bug("metadata not kept", "the service forgets what it said", _metadata_acknowledged_before_they_are_kept),
        Bug("a batch is skipped", "readers miss records", _batch_is_skipped),
        Bug("shortened member votes", "who lost its tail names the end", _shortened_member_votes, THREE_NODES),
        Bug(
            "copy dropped before its replacement",
            "no node has a copy",
            _copy_dropped_before_its_replacement,
            TWO_COPIES,
        ),
        Bug("seal taken for a fence", "a leader begins its segment again", _seal_taken_for_a_fence, THREE_NODES),
        Bug("fence not persisted", "a promise does not outlive its process", _fence_not_persisted, THREE_NODES),
    )
}
