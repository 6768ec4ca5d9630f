"""Plays a story of one shard's segments: events in, the node's actions out, as text that a person can read.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. The node is number 1, the shard's first segment has epoch 0, and a segment is full at 100 bytes.

    > offer a b*3 c(50) d!     one turn's batches: one record each, or COUNT, or (BYTES) long; `!` acks=1, `?` acks=0
    > offer a from 7 0         of idempotent producer 7, in epoch 0, the first with sequence 0; `from 7/1 0`: epoch 1
    > no room for a b          the node takes no new data when they are offered
    > roll / > wait MS         by command / time passes, and the segment's age is looked at
    > disk full|torn|fine      the next writes and new files fail / may be there or not / succeed
    > flushes slow|fast        acknowledged after a flush, as `flush.policy=fsync` asks / once written
    > flushed E OFFSET         segment E is on the disk below an offset
    > flush of E fails         and what the disk holds is not known any more
    > ended flushed|held       flushes of ended segments are done at once / held until `ended flushed`
    > meta away|back|refuses   it confirms rolls later / now / says that another leads
    > isr E 1 2                the ISR of segment E is now these; `first isr 1 2 [of 1 2 3]`: of the first one, before
                               it is opened, and its replicas
    > lists E OFFSET           segment E at OFFSET as the active one, led here: the list is as old as it may be
    > first of 2               another node leads the first one; `first lacks producers`: they are not known here
    > next of 1 2 3 [isr 1 2]  these are prepared as replicas of the segment that follows, the first one leads it, and
                               so is its ISR when it is opened; `next unknown`: none is
    > needs N / > by quorum    how many must be in sync for acks=all / most of the replicas, in sync or not
    > follower N[/LIFE] has OFFSET of E
    > look for lag in E        check its followers; one lags if it took over 30,000 ms to reach an end
    > record E leader N fence F    the record, from the watch
    > fence E                  the meta service seals it without this node
    > drops held|fail          deletions of empty segments are held / those that are held fail
    > deleted / > fault        the topic is gone / an internal error
    > restart [unclean]        only written data is kept; unclean: without a clean stop before
    > leads N still|unknown    question N: this node had read all metadata of that time / unknown
    > log start OFFSET         records below it were deleted
    > compare EPOCH            the answer to a client with this epoch
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from dataclasses import replace

from stratalog.machines.leading import chain_events, leader_events
from stratalog.machines.leading.chain_invariants import check_chain
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey, ShardKey

NODE = 1
SHARD = ShardKey(uuid.UUID(int=1), 0)
POLICY = leader_events.RollPolicy(segment_bytes=100, segment_ms=60_000)
_BATCH = re.compile(r"(?P<name>[a-z]+\d*)(\*(?P<count>\d+))?(\((?P<size>\d+)\))?(?P<acks>[!?]?)")
_ACKS = {"": -1, "!": 1, "?": 0}
_FAILURES = {
    "full": (AppendFailure.NO_ROOM, "no space left"),
    "torn": (AppendFailure.OUTCOME_UNKNOWN, "some of it may be there"),
}


class ChainStory:
    """A shell that writes nowhere. `play` returns what really happened, equal to the story when that is true."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.chain = ShardChain(SHARD, NODE, POLICY)
        self.out: list[str] = []
        self.disk = "fine"
        self.has_slow_flushes = False
        self.holds_ended_flushes = False
        self.meta = "back"
        self.first_isr: tuple[int, ...] = (NODE,)
        self.first_replicas: tuple[int, ...] = (NODE,)
        self.first_leader = NODE
        self.has_producers = True
        self.next: tuple[int, ...] | None = (NODE,)
        """Prepared as replicas; the first one leads."""
        self.next_isr: tuple[int, ...] | None = None
        """None: all of them."""
        self.listed = SegmentKey(SHARD.topic_id, SHARD.shard, 0, 0)
        """What the meta service lists as active."""
        self.log_start = 0
        self.held_flushes: list[int] = []
        self.held_drops: list[int] | None = None
        self.held_confirmations: list[chain_events.ConfirmRoll] = []
        self.confirmed: set[int] = set()
        self.isr_version = 0
        self.due: deque[chain_events.ChainEvent] = deque()

    def play(self, story: str) -> str:
        self.out = []
        for line in story.splitlines():
            text = line.strip()
            if text.startswith("#"):
                self.out.append(text)
            elif text.startswith(">"):
                self.out.append(text)
                before = self.chain.life
                self._command(text[1:].split())
                if self.chain.life is not before:
                    self.out.append(f"  shard is {self.chain.life.name}")
                check_chain(self.chain)
        return "".join(f"{line}\n" for line in self.out)

    # Commands -----------------------------------------------------------------------------------------------------
    def _command(self, words: list[str]) -> None:
        match words:
            case ["offer", *rest]:
                self.step(leader_events.BatchesReceived(batches_of(rest)))
            case ["no", "room", "for", *rest]:
                self.step(chain_events.BatchesTurnedAway(batches_of(rest), "the disk is full"))
            case ["roll"]:
                self.step(leader_events.RollRequested())
            case ["wait", span_ms]:
                self.now_ms += int(span_ms)
                self.step(leader_events.TimePassed(self.now_ms))
            case ["disk", state]:
                self.disk = state
            case ["flushes", speed]:
                self.has_slow_flushes = speed == "slow"
            case ["flushed", epoch, offset]:
                self.step(chain_events.SegmentEventReceived(int(epoch), leader_events.BatchesPersisted(int(offset))))
            case ["flush", "of", epoch, "fails"]:
                self.step(chain_events.SegmentFlushFailed(int(epoch), "the disk lost a page"))
            case ["ended", state]:
                self.holds_ended_flushes = state == "held"
                held, self.held_flushes = self.held_flushes, []
                for ended in held:
                    self.step(chain_events.SegmentFlushed(ended))
            case ["meta", state]:
                self.meta = state
                held_rolls, self.held_confirmations = self.held_confirmations, []
                for roll in held_rolls:
                    self._confirm(roll)
                self._run()
            case ["first", "isr", *nodes]:
                at = nodes.index("of") if "of" in nodes else len(nodes)
                self.first_isr = tuple(map(int, nodes[:at]))
                self.first_replicas = tuple(map(int, nodes[at + 1 :])) or self.first_isr
            case ["first", "of", node]:
                self.first_leader = int(node)
            case ["lists", epoch, base_offset]:
                self.listed = SegmentKey(SHARD.topic_id, SHARD.shard, int(epoch), int(base_offset))
                self.first_leader, self.first_isr, self.first_replicas = NODE, (NODE,), (NODE,)
            case ["first", "lacks", "producers"]:
                self.has_producers = False
            case ["next", "unknown"]:
                self.next = None
            case ["next", "of", *nodes]:
                at = nodes.index("isr") if "isr" in nodes else len(nodes)
                self.next = tuple(map(int, nodes[:at]))
                self.next_isr = tuple(map(int, nodes[at + 1 :])) or None
            case ["needs", count]:
                self.step(leader_events.PolicyChanged(replace(POLICY, min_insync_replicas=int(count))))
            case ["by", "quorum"]:
                self.step(leader_events.PolicyChanged(replace(POLICY, is_quorum=True)))
            case ["isr", epoch, *nodes]:
                self.isr_version += 1
                self.step(
                    chain_events.SegmentEventReceived(
                        int(epoch), leader_events.IsrCommitted(tuple(map(int, nodes)), self.isr_version)
                    )
                )
            case ["follower", follower, "has", offset, "of", epoch]:
                node, _, life = follower.partition("/")
                self.step(
                    chain_events.SegmentEventReceived(
                        int(epoch), leader_events.FollowerFetched(int(node), int(offset), int(life or 0))
                    )
                )
            case ["look", "for", "lag", "in", epoch]:
                self.step(chain_events.SegmentEventReceived(int(epoch), leader_events.LagChecked(self.now_ms)))
            case ["record", epoch, "leader", node, "fence", fence]:
                heard = leader_events.SegmentRecord(int(node), (NODE, 2, 3), (NODE, 2, 3), 0, int(fence))
                self.step(chain_events.SegmentEventReceived(int(epoch), leader_events.RecordReceived(heard)))
            case ["fence", epoch]:
                self.step(chain_events.SegmentEventReceived(int(epoch), leader_events.FenceRaised(int(epoch))))
            case ["drops", "held"]:
                self.held_drops = []
            case ["drops", "fail"]:
                for ended in self.held_drops or ():
                    self.step(chain_events.EmptySegmentKept(ended))
                self.held_drops = None
            case ["deleted"]:
                self.step(chain_events.ShardStopped(Stop("the topic was deleted", StopCause.DELETED)))
            case ["fault"]:
                self.step(chain_events.ShardStopped(Stop("a fault in the node", StopCause.FAULT)))
            case ["leads", question, answer]:
                self.step(chain_events.LeadershipChecked(int(question), is_known=answer == "still"))
            case ["log", "start", offset]:
                self.log_start = int(offset)
            case ["compare", epoch]:
                order = self.chain.compare_epoch(int(epoch), self.listed.epoch)
                self.out.append(f"  {('stale', 'good', 'too new')[order + 1]}")
            case ["restart", *how]:
                self._restart(is_unclean=how == ["unclean"])
            case _:
                raise ValueError(f"no such command: {words}")

    def _restart(self, *, is_unclean: bool) -> None:
        """The files are as they were; who waited is gone, and so is what was held."""
        old = self.chain
        self.held_flushes.clear()
        self.held_confirmations.clear()
        doubted = self.listed.epoch if is_unclean else -1
        self.chain = ShardChain(SHARD, NODE, POLICY, led_since_epoch=self.listed.epoch)
        leaders = [
            SegmentLeader(
                leader.key,
                NODE,
                POLICY,
                leader.producers,
                isr=leader.isr,
                end_offset=leader.end_offset,
                size_bytes=leader.size_bytes,
                first_append_ms=leader.first_append_ms,
                is_confirmed=leader.key.epoch <= self.listed.epoch,
                is_tail_doubted=leader.key.epoch == doubted and leader is old.active,
                is_ended=leader is not old.active,
            )
            for leader in [*old.ended, *filter(None, [old.active])]
        ]
        owed = tuple(leader.key.epoch for leader in leaders[:-1] if leader.key.epoch < self.listed.epoch)
        active = leaders.pop() if leaders else None
        known = [leader.high_watermark for leader in [*leaders, *filter(None, [active])] if leader.is_confirmed]
        self.step(chain_events.ShardRecovered(tuple(leaders), active, max(known, default=0), doubted))
        self.step(chain_events.ServiceBegun(owed))

    # The shell ------------------------------------------------------------------------------------------------------
    def step(self, event: chain_events.ChainEvent) -> None:
        """The event and what comes of it; work that a node does beside its turns is done behind it."""
        self.due.append(event)
        self._run()

    def _run(self) -> None:
        while self.due:
            answer: chain_events.ChainEvent | None = self.due.popleft()
            while answer is not None:
                effects, answer = self.chain.step(answer, self.now_ms), None
                for effect in effects:
                    assert answer is None, "an effect behind one that is answered at once"
                    answer = self._perform(effect)

    def _perform(self, effect: chain_events.ChainEffect) -> chain_events.ChainEvent | None:
        say = self.out.append
        match effect:
            case leader_events.PersistBatches(batches, _, _, end_offset):
                assert self.chain.active is not None
                if self.disk != "fine":
                    say(f"  writing {names_of(batches)} fails")
                    return chain_events.AppendFailed(*_FAILURES[self.disk])
                say(f"  segment {self.chain.active.key.epoch}: writes {names_of(batches)} up to {end_offset}")
                return (
                    leader_events.BatchesWritten()
                    if self.has_slow_flushes
                    else leader_events.BatchesPersisted(end_offset)
                )
            case chain_events.AcknowledgeBatches(epoch, high_watermark, batches):
                answered = f", acknowledges {_placed(batches)}" if batches else ""
                say(f"  segment {epoch}: readers see up to {high_watermark}{answered}")
            case leader_events.RefuseBatch(batch, why):
                say(f"  {names_of([batch])}: {why.name}")
            case chain_events.RefuseBatches(batches, why, message):
                say(f"  {names_of(batches)}: {why.name}, {message}")
            case chain_events.NameActive():
                record = leader_events.SegmentRecord(self.first_leader, self.first_replicas, self.first_isr, 0)
                return chain_events.ActiveNamed(self.listed, record, ProducerTable() if self.has_producers else None)
            case chain_events.NameSuccessor():
                return (
                    chain_events.SuccessorNamed(self.next[0], self.next)
                    if self.next
                    else chain_events.SuccessorUnknown()
                )
            case chain_events.PrepareSuccessorOf(epoch):
                if self.next != (NODE,):  # one that is alone with its service does nothing
                    say(f"  asks meta who follows segment {epoch}")
            case chain_events.HandOver(epoch):
                say(f"  segment {epoch} ended, and another node goes on")
            case chain_events.OpenSegment(leader):
                if self.disk != "fine":
                    say(f"  segment {leader.key.epoch} at {leader.key.base_offset} cannot be made")
                    return chain_events.OpeningFailed(*_FAILURES[self.disk])
                say(f"  opens segment {leader.key.epoch} at {leader.key.base_offset}")
                return chain_events.SegmentOpened()
            case chain_events.FlushSegment(epoch):
                say(f"  flushes segment {epoch}, which ended")
                if self.holds_ended_flushes:
                    self.held_flushes.append(epoch)
                else:
                    self.due.append(chain_events.SegmentFlushed(epoch))
            case chain_events.ConfirmRoll():
                say(f"  tells meta that segment {effect.epoch} ended at {effect.end_offset}")
                self._confirm(effect)
            case chain_events.SealSegment(epoch):
                say(f"  seals segment {epoch}")
                self.due.append(chain_events.SegmentLeft(epoch))
            case chain_events.DropEmptySegment(epoch, offset):
                say(f"  has segment {epoch}, which is empty, deleted below {offset}")
                if self.held_drops is None:
                    self.due.append(chain_events.SegmentLeft(epoch))
                else:
                    self.held_drops.append(epoch)
            case chain_events.ProposeIsrOf(epoch, proposal):
                say(f"  segment {epoch}: proposes ISR {' '.join(map(str, proposal.isr))}")
            case chain_events.LeaveSegment(epoch):
                say(f"  leaves segment {epoch} to others, who seal it")
            case chain_events.DoubtCopy(epoch):
                say(f"  segment {epoch}: its file is in doubt")
            case chain_events.CheckLeadership(question):
                say(f"  asks meta who leads, {question}")
            case chain_events.NotifyReaders():
                say("  readers are told")
        return None

    def _confirm(self, roll: chain_events.ConfirmRoll) -> None:
        if self.meta == "away":
            self.held_confirmations.append(roll)
        elif self.meta == "refuses":
            self.due.append(chain_events.ShardStopped(Stop("roll refused: another leads", StopCause.DEPOSED)))
        else:
            self.listed = SegmentKey(SHARD.topic_id, SHARD.shard, roll.epoch + 1, roll.end_offset)
            assert self.next is not None
            opened = leader_events.SegmentRecord(self.next[0], self.next, self.next_isr or self.next, 0)
            self.first_leader, self.first_isr, self.first_replicas = self.next[0], opened.isr, self.next
            self.due.append(chain_events.RollConfirmed(roll.epoch, self.log_start, opened))


def batches_of(words: list[str]) -> list[leader_events.OfferedBatch]:
    """`a*3!`, or `a from 7/1 0`: see the module."""
    batches: list[leader_events.OfferedBatch] = []
    line = deque(words)
    while line:
        found = _BATCH.fullmatch(word := line.popleft())
        if found is None:
            raise ValueError(f"no batch: {word}")
        producer, epoch, sequence = -1, -1, -1
        if line and line[0] == "from":
            line.popleft()
            who, _, life = line.popleft().partition("/")
            producer, epoch, sequence = int(who), int(life or 0), int(line.popleft())
        batches.append(
            leader_events.OfferedBatch(
                None,
                int(found["size"] or 10),
                int(found["count"] or 1),
                0,
                producer,
                epoch,
                sequence,
                _ACKS[found["acks"]],
                None,
                found["name"],
            )
        )
    return batches


def names_of(batches: list[leader_events.OfferedBatch]) -> str:
    return " ".join(batch.slot for batch in batches)


def _placed(batches: list[leader_events.OfferedBatch]) -> str:
    return " ".join(f"{batch.slot}@{batch.base_offset}" for batch in batches)
