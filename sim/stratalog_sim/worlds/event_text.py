"""A history in words: what happened, so that a person can follow it. It is made only when a person asks for it."""

from __future__ import annotations

from typing import Any

from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, Lock, Registration, Snapshot
from stratalog.model.segment import RemotePart, Segment
from stratalog_sim.environment.process import Answer, Request
from stratalog_sim.environment.store import StoredManifest, StoredPart
from stratalog_sim.service.meta import Perform


def in_words(what: Any) -> str:
    match what:
        case str():
            return what
        case Request(_, asked):
            return in_words(asked)
        case Answer(_, answer):
            return f"answer {in_words(answer)}"
        case StratalogError():
            return f"{type(what).__name__} ({str(what)[:160]})"
        case SegmentKey():
            return f"{in_words(what.shard_key)}/e{what.epoch}@{what.base_offset}"
        case ShardKey():
            return f"t{what.topic_id.int}s{what.shard}"
        case Segment():
            end = "" if what.end_offset is None else f"..{what.end_offset}"
            isr = f" led by {what.leader} isr {_list(what.isr)}v{what.isr_version}" if what.leader is not None else ""
            held = f" on {_list(what.local_nodes)}" if what.seal is not None else ""
            fence = f" fence {what.fence}" if what.fence else ""
            stored = f" stored to {what.remote.commit_offset}" if what.remote.commit_offset >= 0 else ""
            more = what.handed
            told = "".join(
                f" {name} {in_words(value)}"
                for name, value in (
                    ("prepared", more.prepared),
                    ("votes", more.votes),
                    ("source", more.source),
                    ("doubts", more.doubts),
                    ("gave up", more.given_up),
                    ("reports", more.reports),
                )
                if value
            )
            return f"{in_words(what.key)}{end} {what.state.name}{isr}{held}{fence}{stored}{told}"
        case Lock():
            return f"lock {what.name} of {what.holder}, epoch {what.epoch}"
        case RemotePart():
            return f"[{what.base_offset}, {what.end_offset}) in {what.object_key}"
        case StoredPart():
            return f"part of {in_words(what.key)} from {what.batches[0].base_offset} to {what.batches[-1].end_offset}"
        case StoredManifest():
            return f"manifest of {in_words(what.key)}: {', '.join(what.parts)}"
        case Registration():
            return f"life {what.node_epoch}"
        case Snapshot():
            return f"everything, version {what.version}"
        case ChangeSet():
            return f"version {what.version}"
        case commands.Command():
            return _command(what)
        case Perform(command):
            return in_words(command)
        case tuple():
            return ", ".join(map(in_words, what)) or "nothing"
        case _:
            return str(what)


def _list(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _command(command: commands.Command[Any]) -> str:
    life = getattr(command, "caller", None)
    by = "" if life is None else f" (life {life.epoch})"
    match command:
        case commands.RegisterNode(node, start_id):
            return f"registers node {node.node_id} with {node.storage_id}, {start_id}"
        case commands.RollSegment():
            return f"rolls {in_words(command.segment)} at {command.end_offset}{by}"
        case commands.SealSegment():
            record = command.record
            return f"seals {in_words(command.segment)} at {record.end_offset}, digest {record.digest.hex()}{by}"
        case commands.ProposeIsr():
            version = command.expected_version
            return f"proposes ISR {_list(command.isr)} of {in_words(command.segment)} after v{version}{by}"
        case commands.PromiseFence():
            whole = "whole" if command.is_tail_whole else "doubtful"
            return f"promises {in_words(command.segment)}, has it up to {command.end_offset}, {whole}{by}"
        case commands.ReportReplica():
            proof = command.proof
            return f"reports {in_words(command.segment)} up to {proof.end_offset}, {proof.digest.hex()}{by}"
        case commands.NoteLives():
            disks = f", stuck {in_words(command.stuck)}, working {in_words(command.working)}"
            return f"notes lost {in_words(command.lost)}, heard {in_words(command.heard)}{disks}"
        case commands.ContinueWithout(silent):
            return "continues without: " + "; ".join(f"{in_words(one.segment)} {in_words(one.lives)}" for one in silent)
        case commands.MoveReplicas(moves):
            return "moves replicas: " + "; ".join(
                f"{in_words(one.segment)} {_list(one.replicas)} +{_list(one.added)} -{_list(one.dropped)}"
                for one in moves
            )
        case commands.ReportFaultyCopies(segments):
            return f"cannot vouch for {in_words(segments)}{by}"
        case commands.ReportLostCopies(segments):
            return f"has no more {in_words(segments)}{by}"
        case commands.CommitParts():
            parts = ", ".join(f"{in_words(one.segment)} {in_words(one.part)}" for one in command.commits)
            return f"commits {parts} under {command.lock.epoch}{by}"
        case commands.ReplaceParts():
            parts = ", ".join(f"{in_words(one.segment)} {in_words(one.new)}" for one in command.replacements)
            return f"moves parts: {parts}{by}"
        case commands.CompleteRemote():
            return f"completes {in_words(command.segment)} with {command.manifest_key}{by}"
        case commands.AcquireLock():
            return f"takes {command.name} as {command.holder}{by}"
        case _:
            return f"{type(command).__name__} {' '.join(in_words(value) for value in _fields(command))}{by}"


def _fields(command: commands.Command[Any]) -> list[Any]:
    names = [name for name in getattr(type(command), "__dataclass_fields__", {}) if name != "caller"]
    return [getattr(command, name) for name in names]
