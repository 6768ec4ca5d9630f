"""Plays a story of one segment's leader: events in, effects out, both as text that a person can read.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. The leader is node 1, its segment begins at offset 0 and is full at 100 bytes.

    > leads [with 2 3] [of 2 3 4] [needs N] [by quorum] [unconfirmed] [doubted from OFFSET]    the first command:
                                                 the rest of the ISR; the other replicas, if more; how many acks=all
                                                 needs, or most of the replicas; a roll unknown to the meta service;
                                                 an unclean start
    > offer a b*3 c(50) d!     one turn's batches, as in support.chain_story
    > written / > persisted N / > failed    the batches are in the file / durable below N / not in the file
    > follower N[/LIFE] has OFFSET / > node N began life L / > node N of life L is dead
    > look for lag             check the followers; one lags if it took over 30,000 ms to reach an end
    > isr 1 2 version V        the meta service's record has this ISR, or had it once
    > read back isr 1 2 version V after refusal of 1 2 3     and so does a read begun after it refused that
                               proposal; `after silence 1 2 3`: after its answer was lost
    > record [leader N] [of 2 3] isr 1 2 version V [fence F] [sealed]     the whole record, from the watch
    > confirmed [isr 1 2 [version V]]    the meta service knows this segment and its ISR
    > fence / > flush fails
    > roll / > wait MS         by command / time passes
    > next segment opened / > next segment failed / > nobody is next [a b]    so these are offered again
    > limit BYTES              the topic's segment size from now on
"""

from __future__ import annotations

import uuid
from itertools import takewhile

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey
from support.chain_story import batches_of, names_of

KEY = SegmentKey(uuid.UUID(int=1), 0, 0, 0)
POLICY = leader_events.RollPolicy(segment_bytes=100, segment_ms=60_000)


class LeaderStory:
    def __init__(self) -> None:
        self.now_ms = 0
        self.leader = SegmentLeader(KEY, 1, POLICY, ProducerTable(), isr=(1,))
        self.out: list[str] = []
        self.proposals: list[leader_events.ProposeIsr] = []

    def play(self, story: str) -> str:
        """The story with what really happened; equal to the story when it is true."""
        self.out = []
        for line in story.splitlines():
            text = line.strip()
            if text.startswith("#"):
                self.out.append(text)
            elif text.startswith(">"):
                self.out.append(text)
                before = self.leader.life
                self._command(text[1:].split())
                if self.leader.life is not before:
                    self.out.append(f"  segment is {self.leader.life.name}")
                self.leader.check_invariants()
        return "".join(f"{line}\n" for line in self.out)

    def _command(self, words: list[str]) -> None:
        if words[0] == "leads":
            self._begin(words[1:])
            return
        for effect in self.leader.step(self._event(words), self.now_ms):
            if isinstance(effect, leader_events.ProposeIsr):
                self.proposals.append(effect)
            self.out.append(f"  {_effect_words(effect)}")

    def _begin(self, words: list[str]) -> None:
        needed = int(words[words.index("needs") + 1]) if "needs" in words else 1
        others = _nodes_after("with", words)
        self.leader = SegmentLeader(
            KEY,
            1,
            leader_events.RollPolicy(POLICY.segment_bytes, POLICY.segment_ms, needed, is_quorum="quorum" in words),
            ProducerTable(),
            isr=(1, *others),
            replicas=(1, *(_nodes_after("of", words) or others)),
            is_confirmed="unconfirmed" not in words,
            is_tail_doubted="doubted" in words,
            end_offset=int(words[-1]) if "doubted" in words else None,
        )

    def _event(self, words: list[str]) -> leader_events.LeaderEvent:
        match words:
            case ["offer", *batches]:
                return leader_events.BatchesReceived(batches_of(batches))
            case ["written"]:
                return leader_events.BatchesWritten()
            case ["persisted", offset]:
                return leader_events.BatchesPersisted(int(offset))
            case ["failed"]:
                return leader_events.PersistFailed()
            case ["follower", follower, "has", offset]:
                node, _, life = follower.partition("/")
                return leader_events.FollowerFetched(int(node), int(offset), int(life or 0))
            case ["node", node, "began", "life", life]:
                return leader_events.NodeUpdated(int(node), int(life))
            case ["node", node, "of", "life", life, "is", state]:
                return leader_events.NodeUpdated(
                    int(node), int(life), is_alive=state != "dead", can_write=state != "stuck"
                )
            case ["look", "for", "lag"]:
                return leader_events.LagChecked(self.now_ms)
            case ["isr", *nodes, "version", version]:
                return leader_events.IsrCommitted(tuple(map(int, nodes)), int(version))
            case ["read", "back", "isr", *_]:
                proposed = _nodes_after("of", words) or _nodes_after("silence", words)
                proposal = next(p for p in reversed(self.proposals) if p.isr == proposed)
                isr, version = _nodes_after("isr", words), int(words[words.index("version") + 1])
                return leader_events.ProposalReadBack(proposal, isr, version, "refusal" in words)
            case ["record", *_]:
                return leader_events.RecordReceived(self._record(words))
            case ["confirmed", *rest]:
                return leader_events.OpeningConfirmed(self._record(rest) if rest else None)
            case ["fence"]:
                return leader_events.FenceRaised(1)
            case ["flush", "fails"]:
                return leader_events.FlushFailed()
            case ["roll"]:
                return leader_events.RollRequested()
            case ["wait", span_ms]:
                self.now_ms += int(span_ms)
                return leader_events.TimePassed()
            case ["next", "segment", "opened"]:
                return leader_events.SuccessorOpened(self.leader.producers.snapshot())
            case ["next", "segment", "failed"]:
                return leader_events.RollFailed()
            case ["nobody", "is", "next", *batches]:
                return leader_events.RollPutOff(batches_of(batches))
            case ["limit", size_bytes]:
                return leader_events.PolicyChanged(leader_events.RollPolicy(int(size_bytes), POLICY.segment_ms))
            case _:
                raise ValueError(f"no such command: {words}")

    def _record(self, words: list[str]) -> leader_events.SegmentRecord:
        return leader_events.SegmentRecord(
            leader=None if "sealed" in words else int(words[words.index("leader") + 1]) if "leader" in words else 1,
            replicas=(1, *_nodes_after("of", words)) if "of" in words else self.leader.replicas,
            isr=_nodes_after("isr", words),
            isr_version=int(words[words.index("version") + 1]) if "version" in words else 0,
            fence=int(words[words.index("fence") + 1]) if "fence" in words else 0,
            is_open="sealed" not in words,
        )


def _nodes_after(word: str, words: list[str]) -> tuple[int, ...]:
    if word not in words:
        return ()
    return tuple(map(int, takewhile(str.isdigit, words[words.index(word) + 1 :])))


def _effect_words(effect: leader_events.LeaderEffect) -> str:
    match effect:
        case leader_events.PersistBatches(batches, _, _, end_offset):
            placed = " ".join(f"{batch.slot}@{batch.base_offset}" for batch in batches)
            return f"write {placed}, up to {end_offset}"
        case leader_events.Acknowledge(leader_mark, high_watermark):
            return f"acknowledge acks=1 below {leader_mark}, acks=all below {high_watermark}"
        case leader_events.AnswerDuplicate(batch, duplicate):
            return f"{batch.slot} is in the log already, at {duplicate.base_offset}"
        case leader_events.RefuseBatch(batch, why):
            return f"refuse {batch.slot}: {why.name}"
        case leader_events.RollSegment(end_offset, remaining):
            return f"roll at {end_offset}" + (f", {names_of(remaining)} to the next segment" if remaining else "")
        case leader_events.ProposeIsr(isr, version):
            return f"propose ISR {' '.join(map(str, isr))} under version {version}"
        case leader_events.PrepareSuccessor():
            return "have the next segment prepared"
        case leader_events.StopLeading():
            return "stop leading"
