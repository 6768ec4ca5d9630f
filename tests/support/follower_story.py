"""Plays a story of one segment's follower: what it hears in, what it asks for out, both as text an operator can read.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. The follower is node 2; its segment has epoch 3 and begins at offset 100.

    > follows [up to N] [durable to N] [fsync] [unclean] [promised F]     first of all: what a start found
    > record leader 1 isr 1 2 3 [fence F] [ends E] [source N] [sealed by 1 2] [of 1 2 3]
                                       what the metadata say; of: the replicas, 1 2 3 unless said
    > gone                             the metadata name the segment no more
    > node 1 sends 100..105 [epoch E] hw N
    > node 1 has no more, hw N
    > node 1 refuses NOT_NOW
    > append fails / > cut fails       the next one asked for; all others are answered at once
    > flushed N / > flush lost
    > promise 4 written / > promise failed
    > proven 500 bytes / > damaged
    > told / > told it is sealed / > not told
    > wait MS
"""

from __future__ import annotations

import uuid

from stratalog.machines.following import follower_events
from stratalog.machines.following.copy_sources import OBJECT_STORE
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.model.ids import SegmentKey
from support.replicated_segment import replicated_segment

KEY = SegmentKey(uuid.UUID(int=1), 0, 3, 100)
NODE_ID = 2


class FollowerStory:
    def __init__(self) -> None:
        self.now_ms = 0
        self.follower = SegmentFollower(KEY, NODE_ID)
        self.fails_next = False
        self.out: list[str] = []

    def play(self, story: str) -> str:
        """The story with what really happened; equal to the story when it is true."""
        self.out = []
        for line in story.splitlines():
            text = line.strip()
            if text.startswith("#"):
                self.out.append(text)
            elif text.startswith(">"):
                self.out.append(text)
                before = self.follower.life
                self._command(text[1:].replace(",", "").split())
                if self.follower.life is not before:
                    self.out.append(f"  copy is {self.follower.life.name}")
        return "".join(f"{line}\n" for line in self.out)

    def _command(self, words: list[str]) -> None:
        match words:
            case ["follows", *found]:
                self.follower = SegmentFollower(
                    KEY,
                    NODE_ID,
                    is_fsync="fsync" in found,
                    end_offset=_number_after(found, "up"),
                    durable_offset=_number_after(found, "durable"),
                    is_tail_whole="unclean" not in found or "fsync" in found,
                    promised_fence=_number_after(found, "promised") or 0,
                )
            case ["append" | "cut", "fails"]:
                self.fails_next = True
            case _:
                self._step(self._event(words))

    def _step(self, event: follower_events.FollowerEvent) -> None:
        effects = self.follower.step(event, self.now_ms)
        self.follower.check_invariants()
        self.out += [f"  {_effect_words(effect)}" for effect in effects]
        if effects and isinstance(effects[-1], follower_events.AppendRange | follower_events.CutTail):
            fails, self.fails_next = self.fails_next, False
            if isinstance(effects[-1], follower_events.AppendRange):
                self._step(follower_events.AppendFailed() if fails else follower_events.RangeAppended())
            else:
                self._step(follower_events.CutFailed() if fails else follower_events.TailCut())

    def _event(self, words: list[str]) -> follower_events.FollowerEvent:
        match words:
            case ["record", *said]:
                return _record(said)
            case ["gone"]:
                return follower_events.SegmentGone()
            case ["node", node, "sends", offsets, *more]:
                base, end = map(int, offsets.split(".."))
                epoch = _number_after(more, "epoch")
                found = follower_events.CheckedRange(
                    KEY.epoch if epoch is None else epoch, base, end, 10 * (end - base), b""
                )
                return follower_events.RangeArrived(int(node), found, int(words[-1]))
            case ["node", node, "has", "no", "more", "hw", high_watermark]:
                return follower_events.RangeArrived(int(node), None, int(high_watermark))
            case ["store", "sends", offsets]:
                base, end = map(int, offsets.split(".."))
                found = follower_events.CheckedRange(KEY.epoch, base, end, 10 * (end - base), b"")
                return follower_events.RangeArrived(OBJECT_STORE, found, end)
            case ["store", "refuses", why]:
                return follower_events.RangeRefused(OBJECT_STORE, follower_events.RangeRefusal[why])
            case ["node", node, "refuses", why]:
                return follower_events.RangeRefused(int(node), follower_events.RangeRefusal[why])
            case ["flushed", offset]:
                return follower_events.DataFlushed(int(offset))
            case ["flush", "lost"]:
                return follower_events.FlushLost("the disk lost a page")
            case ["promise", "failed"]:
                return follower_events.PromiseFailed()
            case ["promise", fence, "written"]:
                return follower_events.PromiseWritten(int(fence))
            case ["filled", "up", "to", offset]:
                return follower_events.CopyFilled(int(offset))
            case ["proven", size_bytes, "bytes"]:
                return follower_events.CopyProven(int(size_bytes), b"digest")
            case ["damaged"]:
                return follower_events.CopyDamaged("a batch has another CRC")
            case ["told"]:
                return follower_events.ReportAccepted()
            case ["told", "it", "is", "sealed"]:
                return follower_events.ReportAccepted(is_settled=True)
            case ["not", "told"]:
                return follower_events.ReportFailed()
            case ["wait", span_ms]:
                self.now_ms += int(span_ms)
                return follower_events.TimePassed()
            case _:
                raise ValueError(f"no such command: {words}")


_NAMES = ("leader", "isr", "fence", "ends", "source", "sealed", "stored", "of", "by", "away")


def _record(words: list[str]) -> follower_events.SegmentNamed:
    fields: dict[str, list[int]] = {}
    name = ""
    for word in words:
        if word in _NAMES:
            name = "sealed" if word == "by" else word
            fields.setdefault(name, [])
        else:
            fields[name].append(int(word))
    one = {name: numbers[0] for name, numbers in fields.items() if numbers}
    segment = replicated_segment(
        KEY,
        one.get("leader"),
        tuple(fields.get("of", (1, 2, 3))),
        tuple(fields.get("isr", ())),
        fence=one.get("fence", 0),
        end_offset=one.get("ends"),
        source=one.get("source"),
        holders=tuple(fields["sealed"]) if "sealed" in fields else None,
        is_stored="stored" in fields,
    )
    away = fields.get("away", ())
    return follower_events.SegmentNamed.of(segment, lambda node_id: node_id not in away, has_store=True)


def _number_after(words: list[str], name: str) -> int | None:
    if name not in words:
        return None
    return next(int(word) for word in words[words.index(name) + 1 :] if word.isdigit())


def _effect_words(effect: follower_events.FollowerEffect) -> str:
    match effect:
        case follower_events.Ask(node_id, offset, is_throttled):
            whom = "the store" if node_id == OBJECT_STORE else f"node {node_id}"
            return f"ask {whom} at {offset}" + (", throttled" if is_throttled else "")
        case follower_events.StopAsking():
            return "ask nobody"
        case follower_events.AppendRange(found):
            return f"append {found.base_offset}..{found.end_offset}"
        case follower_events.CutTail(end_offset):
            return f"cut to {end_offset}"
        case follower_events.FillCopy(end_offset):
            return f"fill up to {end_offset}"
        case follower_events.FlushData():
            return "flush"
        case follower_events.WritePromise(fence):
            return f"write the promise of fence {fence}"
        case follower_events.SubmitPromise(fence, end_offset, high_watermark, is_tail_whole):
            tail = "whole" if is_tail_whole else "not whole"
            return f"tell the promise of fence {fence}: ends at {end_offset}, hw {high_watermark}, tail {tail}"
        case follower_events.ProveCopy(end_offset):
            return f"prove all up to {end_offset}"
        case follower_events.SubmitReport(end_offset, size_bytes, _):
            return f"tell the digest of {size_bytes} bytes up to {end_offset}"
        case follower_events.MoveHighWatermark(high_watermark):
            return f"serve below {high_watermark}"
        case follower_events.DropCopy():
            return "drop the copy"
        case follower_events.ReportFault(reason):
            return f"say: {reason}"
