"""Plays a story of one shard's restart: what disk, metadata and store hold, then what the restart does, as text.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. Files are drawn as in support.simulated_disk. Commands:

    > segment E at BASE sealed|sealing to END [stored [to N]] [freed]    metadata, oldest first
    > segment E at BASE active [stored to N] [elsewhere]
    > log start N  /  topic fsync  /  topic gives up  /  topic is deleted
    > file E [at BASE] [DRAWING] [headless] [foreign] [unreadable] [failing]     BASE is metadata's unless it is said
    > file E gone  /  file E is readable
    > checkpoint E at N [where M should be]      the checkpoint says N at the position of M
    > tables are read late       those of producers at the ends of sealed segments: when a pass asks for them
    > store is away  /  is back  /  is unknown  /  lacks A to B  /  garbles N once  /  has all
    > restart [unclean] [doubting E]             after a stop in order, but for what is said
    > heal                                       one attempt
    > disk                                       draw it
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.restart.restart_events import CheckpointClaim
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentState
from support.restart_words import BATCH_BYTES
from support.simulated_disk import DrawnFile, World, key_of, producers_at, segment_of


class RestartStory:
    def __init__(self) -> None:
        self.world = World()

    def play(self, story: str) -> str:
        """The story with what really happened; equal to the story when it is true."""
        out: list[str] = []
        for line in story.splitlines():
            text = line.strip()
            if text.startswith("#"):
                out.append(text)
            elif text.startswith(">"):
                out.append(text)
                self.world.said = []
                self._command(text[1:].split())
                out += (f"  {said}" for said in self.world.said)
        return "".join(f"{line}\n" for line in out)

    def _command(self, words: list[str]) -> None:
        world = self.world
        match words:
            case ["segment", epoch, "at", base, *rest]:
                self._segment(int(epoch), int(base), rest)
            case ["log", "start", offset]:
                world.log_start = int(offset)
            case ["topic", "fsync"]:
                world.is_fsync = True
            case ["topic", "gives", "up"]:
                world.may_give_up = True
            case ["topic", "is", "deleted"]:
                world.is_topic_deleted = True
            case ["file", epoch, "gone"]:
                del world.files[self._key(int(epoch))]
            case ["file", epoch, "is", "readable"]:
                world.files[self._key(int(epoch))].is_unreadable = False
            case ["file", epoch, "at", base, *rest]:
                self._file(key_of(int(epoch), int(base)), rest)
            case ["file", epoch, *rest]:
                self._file(self._key(int(epoch)), rest)
            case ["checkpoint", epoch, "at", offset, *rest]:
                key = self._key(int(epoch))
                place = int(rest[1]) if rest else int(offset)
                position = (place - key.base_offset) * BATCH_BYTES
                world.checkpoints[key] = CheckpointClaim(position, int(offset), producers_at(int(offset)))
            case ["tables", "are", "read", "late"]:
                world.reads_tables_late = True
            case ["store", *rest]:
                self._store(rest)
            case ["restart", *rest]:
                doubted = int(rest[1]) if rest[:1] == ["doubting"] else None if rest == ["unclean"] else -1
                world.start(doubted)
            case ["heal"]:
                world.attempt()
            case ["disk"]:
                for key, file in sorted(world.files.items()):
                    world.said.append(f"{key.epoch} {file.cells}".rstrip())
                for key, kept in sorted(world.kept.items()):
                    world.said += (f"{key.epoch} {cells} kept aside" for cells in kept)
            case _:
                raise ValueError(f"no such command: {words}")

    def _key(self, epoch: int) -> SegmentKey:
        keys = [*(segment.key for segment in self.world.segments), *self.world.files]
        return next(key for key in keys if key.epoch == epoch)

    def _segment(self, epoch: int, base: int, words: list[str]) -> None:
        state = SegmentState(words[0])
        end = int(words[2]) if state is not SegmentState.ACTIVE else None
        rest = words[3:] if end is not None else words[1:]
        stored_to = int(rest[rest.index("stored") + 2]) if rest[:2] == ["stored", "to"] else -1
        segment = segment_of(
            key_of(epoch, base),
            state,
            end,
            commit_offset=stored_to,
            is_here="freed" not in rest,
            is_stored="stored" in rest and stored_to < 0,
        )
        if "elsewhere" in rest:
            segment = replace(segment, replicas=(2,), leader=2)
        self.world.segments.append(segment)

    def _file(self, key: SegmentKey, words: list[str]) -> None:
        traits = {"headless", "foreign", "unreadable", "failing"}
        drawn = [word for word in words if word not in traits]
        file = DrawnFile("".join(drawn))
        file.is_headless, file.is_foreign = "headless" in words, "foreign" in words
        file.is_unreadable = "unreadable" in words
        if "failing" in words:
            self.world.failing.add(key)
        self.world.files[key] = file

    def _store(self, words: list[str]) -> None:
        match words:
            case ["is", "away"]:
                self.world.is_store_away = True
            case ["is", "back"]:
                self.world.is_store_away = False
            case ["is", "unknown"]:
                self.world.has_store = False
            case ["lacks", begin, "to", end]:
                self.world.store_lacks.update(range(int(begin), int(end)))
            case ["garbles", offset, "once"]:
                self.world.store_garbles.add(int(offset))
            case ["has", "all"]:
                self.world.store_lacks.clear()
            case _:
                raise ValueError(f"no such command: store {words}")
