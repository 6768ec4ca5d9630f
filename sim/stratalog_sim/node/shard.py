"""The shell of one shard on one node: performs what its chain asks for, on a simulated disk, and decides nothing.

In the simulator it takes the place of `storage_node/stratalog_node/shards`: the same order of the same effects, without
bytes, threads and loops.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

from stratalog.machines.leading import chain_events, leader_events
from stratalog.machines.leading.chain_invariants import check_chain
from stratalog.machines.leading.next_check import next_check_ms
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.sealed_producers import as_seen
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.machines.restart.restart_events import CheckpointClaim, Producers
from stratalog.model.append import AppendFailure
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Fenced, Rejected, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import NextReplicas
from stratalog_sim.environment.disk import Batch, Disk, DiskFailed
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.node.proofs import producers_before
from stratalog_sim.node.replica import FollowingNode
from stratalog_sim.node.sealing import SealLine
from stratalog_sim.service.meta import ReadSegment, ReadVersion

_RETRY_MS = 150
_FLUSH_MS = 8
_READS = 5
"""How often the node reads its own copy of the metadata before it gives up and calls the outcome unknown."""


@dataclass(slots=True)
class Offer:
    """A request of a producer; `answers` are per batch: an end offset, or why not."""

    answers: list[int | AppendFailure | str | None]
    done: Callable[[tuple[Any, ...]], None]

    def is_answered(self) -> bool:
        return all(answer is not None for answer in self.answers)


class ShardShell:
    """One shard on a node that lists it."""

    def __init__(self, node: LeadingNode, key: ShardKey, policy: leader_events.RollPolicy, *, is_fsync: bool) -> None:
        self.node = node
        self.key = key
        self.policy = policy
        self.is_fsync = is_fsync
        segments = node.view.segments(key)
        self.chain = ShardChain.begin(key, node.node_id, policy, segments[-1] if segments else None)
        self.inherited: Producers | None = None
        self.named: dict[SegmentKey, NextReplicas | None] = {}
        """By segment: the replicas of the next segment, as just named."""
        self.pending: list[leader_events.OfferedBatch] = []
        self._seals = SealLine(self)
        self.damaged: dict[SegmentKey, None] = {}
        """Led to their end, and not to be sealed here."""

    @property
    def disk(self) -> Disk:
        return self.node.disk

    def begin_again(self) -> None:
        """As who resigned: it may lead again what a later record names."""
        self.chain = self.chain.after_resigning(self.policy, self.node.view.active(self.key))
        self.inherited = None

    # Turns ----------------------------------------------------------------------------------------------------------
    def offer(self, batches: list[leader_events.OfferedBatch]) -> None:
        if not self.pending:
            self.node.scheduler.after(0, self.node, self.turn)
        self.pending += batches

    def turn(self) -> None:
        batches, self.pending = self.pending, []
        self.step(leader_events.BatchesReceived(batches))

    def look_at_age(self) -> None:
        """As the product: time is not told where it can do nothing."""
        now_ms = self.node.scheduler.now_ms
        at_ms = next_check_ms(self.chain, now_ms)
        if at_ms is not None and at_ms <= now_ms:
            self.step(leader_events.TimePassed(now_ms))

    def ask_roll(self) -> None:
        self.step(leader_events.RollRequested())

    def step(self, event: chain_events.ChainEvent) -> None:
        answer: chain_events.ChainEvent | None = event
        while answer is not None:
            effects, answer = self.chain.step(answer, self.node.now_ms), None
            for effect in effects:
                assert answer is None, "an effect behind one that is answered at once"
                answer = self._perform(effect)
        check_chain(self.chain)

    def _perform(self, effect: chain_events.ChainEffect) -> chain_events.ChainEvent | None:
        match effect:
            case leader_events.PersistBatches():
                return self._persist(effect)
            case chain_events.AcknowledgeBatches(epoch, high_watermark, batches):
                self._acknowledge(epoch, high_watermark, batches)
            case leader_events.RefuseBatch(batch, why):
                self._answer(batch, why.value if not isinstance(why, AppendFailure) else why)
            case chain_events.RefuseBatches(batches, why, _):
                for batch in batches:
                    self._answer(batch, why)
            case chain_events.NameActive():
                return self._name_active()
            case chain_events.OpenSegment():
                return self._open(effect)
            case chain_events.DoubtCopy(epoch, reason):
                self.node.tell(f"doubts its copy of epoch {epoch}: {reason}")
            case chain_events.NotifyReaders():
                stop = self.chain.stop
                self.node.tell(f"stops shard {self.key.shard}: {stop.cause.value if stop else ''}")
            case chain_events.FlushSegment(epoch):
                self.node.spawn(self._flush_ended(self._key_of(epoch)))
            case chain_events.ConfirmRoll(epoch, end_offset):
                self.node.spawn(self._confirm(self._key_of(epoch), end_offset))
            case chain_events.DropEmptySegment(epoch, log_start_offset):
                self.node.spawn(self._drop_empty(epoch, log_start_offset))
            case chain_events.SealSegment(epoch):
                self._seals.later(self._key_of(epoch))
            case chain_events.NameSuccessor():
                return self._name_successor()
            case chain_events.PrepareSuccessorOf(epoch):
                self.node.spawn(self._prepare(self._key_of(epoch)))
            case chain_events.HandOver(epoch):
                self.node.tell(f"hands shard {self.key.shard} over behind epoch {epoch}")
                self.node.following.forget_begun(self.key, epoch)
            case chain_events.CheckLeadership(question):
                self.node.spawn(self._read_lead(self.chain, question))
            case chain_events.LeaveSegment(epoch):
                self.node.following.left(self.key, epoch)
            case chain_events.ProposeIsrOf(epoch, proposal):
                self.node.spawn(self._propose(self._key_of(epoch), proposal))
            case _:
                assert_never(effect)
        return None

    def _key_of(self, epoch: int) -> SegmentKey:
        return next(leader.key for leader in self.leaders() if leader.key.epoch == epoch)

    def leaders(self) -> tuple[SegmentLeader, ...]:
        """Of segments that are not sealed yet, oldest first."""
        active = self.chain.active
        return self.chain.ended if active is None else (*self.chain.ended, active)

    # Appending ------------------------------------------------------------------------------------------------------
    def _persist(self, effect: leader_events.PersistBatches) -> chain_events.ChainEvent:
        active = self.chain.active
        assert active is not None
        key = active.key
        batches = [
            Batch(
                one.base_offset,
                one.record_count,
                key.epoch,
                one.payload,
                one.size_bytes,
                one.producer_id,
                one.producer_epoch,
                one.base_sequence,
            )
            for one in effect.batches
        ]
        try:
            self.disk.append(key, batches, as_leader=True)
        except DiskFailed as error:
            return chain_events.AppendFailed(AppendFailure.NO_ROOM, str(error))
        self.node.note_dirty(self.key, key)
        self.node.following.moved(key)
        if not self.is_fsync:
            return leader_events.BatchesPersisted(effect.end_offset)
        self.node.on_disk(_FLUSH_MS, self._flush_group, key, effect.end_offset)
        return leader_events.BatchesWritten()

    def _flush_group(self, key: SegmentKey, end_offset: int) -> None:
        if key not in self.disk.files:
            return
        if self.disk.flush(key):
            self.step(chain_events.SegmentEventReceived(key.epoch, leader_events.BatchesPersisted(end_offset)))
        else:
            self.step(chain_events.SegmentFlushFailed(key.epoch, "the disk lost a page"))

    def _acknowledge(self, epoch: int, high_watermark: int, batches: list[leader_events.OfferedBatch]) -> None:
        self.node.judge.moved_high_watermark(self.node.node_id, self._key_of(epoch), high_watermark)
        self.node.committed_grew(self.key, epoch)
        for batch in batches:
            self._answer(batch, batch.base_offset)

    def _answer(self, batch: leader_events.OfferedBatch, what: int | AppendFailure | str) -> None:
        offer: Offer = batch.request
        assert offer.answers[batch.slot] is None, "a batch is answered once"
        offer.answers[batch.slot] = what
        if offer.is_answered():
            offer.done(tuple(offer.answers))

    # Segments -------------------------------------------------------------------------------------------------------
    def _name_active(self) -> chain_events.ChainEvent:
        segment = self.node.view.active(self.key)
        if segment is None:
            return chain_events.ActiveUnknown()
        inherited = self.inherited
        if inherited is None:
            inherited = producers_before(self.node, segment)
        table = None if inherited is None else ProducerTable(as_seen(inherited, self.node.now_ms))
        return chain_events.ActiveNamed(segment.key, leader_events.SegmentRecord.of(segment), table)

    def _name_successor(self) -> chain_events.ChainEvent:
        active = self.chain.active
        assert active is not None
        segment = self.node.view.segment(active.key)
        prepared = segment.handed.prepared if segment is not None else None
        prepared = self.named.get(active.key) or prepared
        if prepared is not None and self.node.has_service:
            return chain_events.SuccessorNamed(prepared.leader, prepared.replicas)
        if active.replicas == (self.node.node_id,):
            return chain_events.SuccessorNamed(self.node.node_id, active.replicas)
        return chain_events.SuccessorUnknown()

    def _prepare(self, key: SegmentKey) -> Task:
        with suppress(StratalogError):  # asked again when it is wanted
            yield self.node.ask_meta(commands.PrepareSegment(key))

    def _propose(self, key: SegmentKey, proposal: leader_events.ProposeIsr) -> Task:
        was_refused = False
        try:
            taken = yield self.node.ask_meta(commands.ProposeIsr(key, proposal.isr, proposal.version))
        except Fenced:
            self.step(chain_events.SegmentEventReceived(key.epoch, leader_events.FenceRaised(key.epoch + 1)))
            return
        except StratalogError as error:
            was_refused = isinstance(error, Rejected)
        else:
            self.step(
                chain_events.SegmentEventReceived(key.epoch, leader_events.IsrCommitted(taken.isr, taken.isr_version))
            )
            return
        while True:
            yield Sleep(_RETRY_MS)
            try:
                read = yield Ask("meta", ReadSegment(key))
                break
            except StratalogError:
                continue
        if read is not None:
            event = leader_events.ProposalReadBack(proposal, read.isr, read.isr_version, was_refused)
            self.step(chain_events.SegmentEventReceived(key.epoch, event))

    def _read_lead(self, chain: ShardChain, question: int) -> Task:
        is_known = False
        with suppress(StratalogError):
            version = yield Ask("meta", ReadVersion())
            for _ in range(_READS):
                if is_known := self.node.view.version >= version:
                    break
                yield Sleep(_RETRY_MS)
        if self.chain is chain:  # else the chain stopped, and each waiting client got an answer
            self.step(chain_events.LeadershipChecked(question, is_known))

    def _open(self, effect: chain_events.OpenSegment) -> chain_events.ChainEvent:
        key = effect.leader.key
        behind = next((one for one in self.leaders() if one.key.epoch == key.epoch - 1), None)
        # Else no other node continues under that name, and this one reopens the file, confirmed or not.
        is_others = max(len(one.replicas) for one in (effect.leader, behind) if one is not None) > 1
        try:
            self.disk.make(key, is_ahead=effect.is_roll and is_others)
        except DiskFailed as error:
            return chain_events.OpeningFailed(AppendFailure.NO_ROOM, str(error))
        self.inherited = None
        self.node.tell(f"opens epoch {key.epoch} of shard {key.shard} at {key.base_offset}")
        if effect.is_roll and len(effect.leader.producers):
            self.node.note_dirty(self.key, key)
        return chain_events.SegmentOpened()

    def _flush_ended(self, key: SegmentKey) -> Task:
        yield self.node.disk_work(_FLUSH_MS)
        if key not in self.disk.files:
            return
        if self.disk.flush(key):
            self.step(chain_events.SegmentFlushed(key.epoch))
        else:
            self.step(chain_events.SegmentFlushFailed(key.epoch, "the disk lost a page"))

    def _confirm(self, key: SegmentKey, end_offset: int) -> Task:
        following = SegmentKey(key.topic_id, key.shard, key.epoch + 1, end_offset)
        if following in self.disk.files:
            self.disk.name(following)
        while True:
            try:
                opened = yield self.node.ask_meta(commands.RollSegment(key, end_offset))
                break
            except Rejected as refusal:
                if any(one.key == key for one in self.chain.ended):  # else others seal it by now
                    self.step(chain_events.ShardStopped(Stop(f"roll refused: {refusal}", StopCause.DEPOSED)))
                return
            except StratalogError:
                yield Sleep(_RETRY_MS)
        if following in self.disk.files and opened.leader == self.node.node_id:
            self.disk.files[following].is_ahead = False
        self.step(
            chain_events.RollConfirmed(
                key.epoch, self.node.view.log_start(self.key), leader_events.SegmentRecord.of(opened)
            )
        )
        self.node.following.moved(opened.key)

    def _drop_empty(self, epoch: int, log_start_offset: int) -> Task:
        try:
            yield self.node.ask_meta(commands.AdvanceLogStart(self.key, log_start_offset))
        except StratalogError:
            self.step(chain_events.EmptySegmentKept(epoch))
        else:
            self.step(chain_events.SegmentLeft(epoch))

    # Background -----------------------------------------------------------------------------------------------------
    def checkpoint(self, key: SegmentKey) -> None:
        """Flush what was written, and say so beside it."""
        leader = next((one for one in self.leaders() if one.key == key), None)
        file = self.disk.files.get(key)
        if leader is None or file is None or leader.key.epoch != key.epoch or not self.disk.flush(key):
            return
        if leader is self.chain.active and not self.node.is_shared(key):
            claim = CheckpointClaim(file.size_bytes, leader.end_offset, leader.producers.snapshot())
            self.disk.checkpoint(key, claim)

    def committed_end(self, key: SegmentKey) -> int:
        """Up to where a segment's local batches may be read, sent and uploaded; its base when this life knows of no
        copy."""
        segment = self.node.view.segment(key)
        if segment is not None and segment.seal is not None:
            return segment.seal.end_offset if self.node.node_id in segment.local_nodes else key.base_offset
        if any(one.key == key for one in self.leaders()):
            return self.chain.high_watermark
        replica = self.node.following.replicas.get(key)
        return replica.machine.high_watermark if replica is not None else key.base_offset

    def committed_batches(self, key: SegmentKey, from_offset: int) -> list[Batch]:
        """Whole batches of the local copy from there on, below the high watermark."""
        file = self.disk.files.get(key)
        end = self.committed_end(key)
        if file is None:
            return []
        return [one for one in file.whole(key) if one.base_offset >= from_offset and one.end_offset <= end]


class LeadingNode(FollowingNode):
    shards: dict[ShardKey, ShardShell]

    def leads(self, key: SegmentKey) -> bool:
        """Its chain does, as far as it knows."""
        shard = self.shards.get(key.shard_key)
        if shard is None:
            return False
        return any(one.key == key for one in shard.leaders())

    def leads_shard(self, key: ShardKey) -> bool:
        """Clients are sent here, and what they append is taken."""
        active, shard = self.view.active(key), self.shards.get(key)
        if active is None or shard is None or active.leader != self.node_id:
            return False
        return shard.chain.stop is None or not shard.chain.stop.ends_leading
