"""The restart of one shard: what its disk holds, brought together with what the meta service knows of it.

Sealed copies are taken as they are. An unsealed segment's file is scanned from its checkpoint, and cut where its whole
batches end. A file of the next epoch that metadata does not list is a roll that was not confirmed: the log continues in
it, and nothing in it counts until the roll is confirmed. Evidence of what was written comes from metadata (ends of
segments, parts in the object store, the log start), from what the last life left in memory, if the machine has run
since, and from the checkpoint, which is written once all below it was flushed: offsets below it that are not in the
file are gone from the disk. After a power cut the checkpoint may be old, and then it shows less, never more. A file
that is shorter than the evidence is not cut, and the shard does not serve: `Heal` says what is missing. The same holds
for a file in which batches follow bytes that are not batches, if no power cut can have caused that. A checkpoint may be
wrong itself. It counts as right if batches follow at its position, or lead up to it, or the file ends there and nothing
else shows that there was more. Otherwise the file is read from its start and decides: the checkpoint is wrong if whole
batches reach its offset at another place, and the file if not.

Unless the last stop was in order, the segment that was active takes no more batches: offsets given in it may be lost,
and no offset is given twice in an epoch. The same holds for a segment whose file is not as the last life left it.

Plain data in, plain data out; the shell (`stratalog_node.shards.restart.recovery`) reads files and does the steps. One
object per shard, for as many passes as it takes; a pass begins with `FilesListed`.
Cost: some 10 us for a shard without files.
Source: docs/design.md sections 3 and 10, "Restart", "Healing", "Unclean start".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import assert_never

from stratalog.machines.restart import restart_events
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment, SegmentState


def judge_sealed(
    segment: Segment, node_id: int, *, has_file: bool, may_read_bucket: bool = True
) -> restart_events.TakeSealed | restart_events.NoteMissing | restart_events.FreeLeftover | None:
    """What to do about a sealed segment's file on this node, or about there being none. Where readers may not use the
    object store, a replica that is not listed yet keeps its file: it proves it now."""
    if node_id in segment.local_nodes:
        if has_file:
            return restart_events.TakeSealed(segment)
        return restart_events.NoteMissing(segment) if segment.end_offset != segment.base_offset else None
    is_let_go = node_id not in segment.replicas and all(node_id != one.node_id for one in segment.handed.reports)
    is_stored = segment.remote.state is RemoteState.COMPLETE and may_read_bucket
    if has_file and (is_stored or is_let_go):
        return restart_events.FreeLeftover(segment.key)
    return None  # what differed stays for a person to look at


def deleted_files(files: Iterable[SegmentKey], listed: Sequence[Segment], log_start_offset: int) -> list[SegmentKey]:
    """Files of segments that were deleted and forgotten while this node was away: of epochs before all that `listed`
    has, which begins at or below the log start. Metadata that are older than the files have an older log start."""
    if not listed or listed[0].base_offset > log_start_offset:
        return []
    first = listed[0]
    return [key for key in files if key.epoch < first.epoch and key.base_offset < first.base_offset]


def written_end(segment: Segment, *, seen_end: int, log_start_offset: int) -> int:
    """Up to which offset an unsealed segment is known to have been written; its base when nothing is known.
    `seen_end`: what this node kept of that, in its checkpoint or in memory; -1 without."""
    if segment.end_offset is not None:
        return max(segment.end_offset, segment.base_offset)
    # Records were deleted up to the log start, so there were some.
    return max(segment.base_offset, segment.remote.commit_offset, seen_end, log_start_offset)


def counts_in_journal(segment: Segment) -> bool:
    """Whether a start needs what a journal holds of this segment's batches. A sealed one's file was flushed; of a roll
    that was not confirmed nothing was acknowledged."""
    return segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)


@dataclass(slots=True)
class _Opening:
    """The file that is being looked at."""

    key: SegmentKey
    segment: Segment | None
    """None: its roll was not confirmed."""
    producers_before: restart_events.Producers | None
    """None: not read, for a checkpoint says what follows from it."""
    size_bytes: int = 0
    claim: restart_events.CheckpointClaim | None = None
    """Gone on from, as long as it is not refuted."""
    bare_scan: restart_events.FileScanned | None = None
    """Of the claim's position, where not one batch followed."""


@dataclass(slots=True)
class _Pass:
    segments: tuple[Segment, ...]
    log_start_offset: int
    is_fsync: bool
    files: frozenset[SegmentKey]
    checkpoints: Mapping[SegmentKey, restart_events.CheckpointClaim]
    written: Mapping[SegmentKey, int]
    tables: Mapping[SegmentKey, restart_events.Producers]
    producers: restart_events.Producers | None
    """At the end of what was looked at so far; None: not read, of `sealed`."""
    sealed: Segment | None = None
    """The sealed segment that was looked at last."""
    at: int = 0
    strays: list[SegmentKey] | None = None
    """Files of epochs that metadata does not list and that were not looked at; None before their turn."""
    opening: _Opening | None = None
    recovered: list[restart_events.RecoveredSegment] = field(default_factory=list)
    inherited: restart_events.Producers | None = None
    standing: set[SegmentKey] = field(default_factory=set)
    """Segments whose checkpoint stands."""
    refuted: set[SegmentKey] = field(default_factory=set)
    """Segments whose checkpoint was revoked."""
    to_seal: list[restart_events.SealEnded] = field(default_factory=list)
    to_confirm: list[restart_events.ConfirmRoll] = field(default_factory=list)

    @property
    def active(self) -> restart_events.RecoveredSegment | None:
        """The segment in which the log continues, of those that have a file."""
        last = self.recovered[-1] if self.recovered else None
        return last if last is not None and not last.is_ended else None


class ShardRestart:
    """Decides what becomes of one shard's files at a start, and what it serves.

    Invariant: a pass ends in exactly one of `Serve`, `Heal` and `StopShard`; a shard that is no more ends in none.
    Invariant: a file that holds less than is known to have been written is never cut; none is deleted but a copy that
    metadata let go of; no checkpoint is revoked before the log is whole up to where it says.
    Invariant: what is served reaches as far as what is known to have been written, and has no gap.
    """

    __slots__ = ("_doubted_epoch", "_high_watermark", "_left_behind", "_node_id", "_pass")

    def __init__(self, node_id: int, doubted_epoch: int | None) -> None:
        """`doubted_epoch`: the one that takes no batches though the last stop was in order, -1 for none; None after
        any other stop: whichever is active."""
        self._node_id = node_id
        self._doubted_epoch = doubted_epoch
        self._high_watermark = 0
        self._left_behind: tuple[SegmentKey, restart_events.Producers] | None = None
        """The segment that was to be healed last, with the producers at the end of what its file has."""
        self._pass = _Pass((), 0, False, frozenset(), {}, {}, {}, ())

    def step(self, event: restart_events.RestartEvent) -> list[restart_events.RestartStep]:
        match event:
            case restart_events.FilesListed():
                return self._begin(event)
            case restart_events.FileOpened(_, size_bytes, has_header):
                return self._opened(size_bytes, has_header=has_header)
            case restart_events.FileDamaged(key, why):
                if self._current.segment is not None:
                    return self._stop(key, why)
                return [restart_events.SetAside(key), *self._next_file()]
            case restart_events.FileScanned():
                return self._scanned(event)
            case restart_events.CheckpointTraced(key, is_led_to):
                opening = self._current
                assert opening.bare_scan is not None
                if is_led_to:
                    return self._found(opening, opening.bare_scan)
                return self._scan_all(opening)
            case restart_events.StepFailed(key, why):
                return self._stop(key, why)
            case _:
                assert_never(event)

    def check_invariants(self) -> None:
        """Of what this pass found so far."""
        recovered = self._pass.recovered
        for before, after in pairwise(recovered):
            assert before.is_ended, "the log continues in two segments"
            assert before.key.epoch < after.key.epoch and before.end_offset <= after.key.base_offset
            assert after.is_confirmed or before.end_offset == after.key.base_offset, "a gap before an unconfirmed roll"
            assert before.is_confirmed or not after.is_confirmed
        assert all(found.key.base_offset <= found.end_offset for found in recovered)
        assert not self._pass.refuted & self._pass.standing

    @property
    def _current(self) -> _Opening:
        opening = self._pass.opening
        assert opening is not None, "no file is being looked at"
        return opening

    # A pass -------------------------------------------------------------------------------------------------------
    def _begin(self, event: restart_events.FilesListed) -> list[restart_events.RestartStep]:
        metadata = event.metadata
        if metadata is None:
            # Its files are the deletion worker's.
            return [restart_events.RevokeStale(tuple(event.checkpoints))] if event.checkpoints else []
        segments = metadata.segments
        if segments:
            self._high_watermark = max(self._high_watermark, segments[-1].base_offset)
        if self._doubted_epoch is None:
            is_active = bool(segments) and segments[-1].state is SegmentState.ACTIVE
            self._doubted_epoch = segments[-1].epoch if is_active else -1
        producers: restart_events.Producers = ()
        if self._left_behind is not None and all(segment.key != self._left_behind[0] for segment in segments):
            producers = self._left_behind[1]  # the log continues after it
        self._pass = _Pass(
            segments,
            metadata.log_start_offset,
            metadata.is_fsync,
            event.files,
            event.checkpoints,
            event.written,
            metadata.tables,
            producers,
        )
        verdicts = [
            judge_sealed(
                segment,
                self._node_id,
                has_file=segment.key in event.files,
                may_read_bucket=metadata.may_read_bucket,
            )
            for segment in segments
            if segment.state is SegmentState.SEALED
        ]
        return [*(verdict for verdict in verdicts if verdict is not None), *self._next_file()]

    def _next_file(self) -> list[restart_events.RestartStep]:
        """To the next file, or to the end of the pass."""
        this = self._pass
        this.opening = None
        while this.at < len(this.segments):
            segment = this.segments[this.at]
            this.at += 1
            match segment.state:
                case SegmentState.SEALED:
                    assert segment.seal is not None
                    this.producers = this.tables.get(segment.key) if segment.seal.producers.count else ()
                    this.sealed = segment
                case SegmentState.SEALING | SegmentState.ACTIVE:
                    if self._node_id not in segment.replicas:
                        return self._serve()
                    if steps := self._take_unsealed(segment):
                        return steps
                case SegmentState.DELETED:
                    pass
                case _:
                    assert_never(segment.state)
        return self._take_strays()

    def _take_unsealed(self, segment: Segment) -> list[restart_events.RestartStep]:
        """Nothing: it was never written to."""
        this, key = self._pass, segment.key
        if key in this.files:
            return self._open(key, segment)
        claim = this.checkpoints.get(key)
        if claim is not None and claim.position == 0:
            this.producers = claim.producers
            this.standing.add(key)
        has_next = any(other.epoch > key.epoch for other in this.files)
        is_short = self._written_end(segment) > segment.base_offset
        if segment.state is SegmentState.ACTIVE and not has_next and not is_short:
            this.inherited = this.producers  # not known: its first append finds them, and nothing else needs them
            return []
        if this.producers is None:
            return self._read_producers()
        if is_short:
            return self._heal(segment, segment.base_offset)
        # It ended, known or not, before anything was in it.
        return [restart_events.RecreateFile(key), *self._open(key, segment)]

    def _take_strays(self) -> list[restart_events.RestartStep]:
        """Unconfirmed rolls continue each other. A file that follows them with a gap was never acknowledged; a file
        that does not follow is a leftover for the deletion worker."""
        this = self._pass
        if this.strays is None:
            listed = {segment.key for segment in this.segments}
            this.strays = sorted(this.files - listed, key=lambda key: (-key.epoch, -key.base_offset))
        steps: list[restart_events.RestartStep] = []
        while this.strays:
            key, active = this.strays.pop(), this.active
            if active is None or key.epoch <= active.key.epoch:
                continue
            if key.epoch == active.key.epoch + 1 and key.base_offset == active.end_offset:
                return steps + self._open(key, None)
            steps.append(restart_events.SetAside(key))
        return steps + self._serve()

    # One file -----------------------------------------------------------------------------------------------------
    def _open(self, key: SegmentKey, segment: Segment | None) -> list[restart_events.RestartStep]:
        self._pass.opening = _Opening(key, segment, self._pass.producers)
        return [restart_events.OpenFile(key)]

    def _opened(self, size_bytes: int, *, has_header: bool) -> list[restart_events.RestartStep]:
        opening = self._current
        key = opening.key
        if not has_header:
            # The crash came while the file was being made, or the power went before any of it was flushed.
            kept: list[restart_events.RestartStep] = [restart_events.SetAside(key)] if size_bytes > 0 else []
            return [*kept, restart_events.RecreateFile(key), restart_events.OpenFile(key)]
        opening.size_bytes = size_bytes
        claim = self._pass.checkpoints.get(key)
        if claim is None or claim.position > size_bytes:
            return self._scan_all(opening)
        opening.claim = claim
        return [restart_events.ScanFile(key, claim.position, claim.producers)]

    def _scan_all(self, opening: _Opening) -> list[restart_events.RestartStep]:
        if opening.producers_before is None:
            return self._read_producers()
        return [restart_events.ScanFile(opening.key, 0, opening.producers_before)]

    def _read_producers(self) -> list[restart_events.RestartStep]:
        assert self._pass.sealed is not None
        return [restart_events.ReadProducers(self._pass.sealed)]

    def _scanned(self, scan: restart_events.FileScanned) -> list[restart_events.RestartStep]:
        opening = self._current
        claim, bare_scan = opening.claim, opening.bare_scan
        if claim is None:
            return self._found(opening, scan)
        if bare_scan is None:
            if 0 < claim.position == scan.position and (
                # Not one batch follows it: a tail torn just there, room ahead, or the checkpoint or the file is wrong.
                scan.position < opening.size_bytes or self._is_short(opening.segment, scan.end_offset)
            ):
                opening.bare_scan = scan
                return [restart_events.TraceCheckpoint(opening.key)]
            return self._found(opening, scan)
        if (scan.position, scan.end_offset) == (claim.position, claim.end_offset):
            return self._found(opening, bare_scan)
        opening.claim = None
        return self._found(opening, scan)

    def _found(self, opening: _Opening, scan: restart_events.FileScanned) -> list[restart_events.RestartStep]:
        """The file's whole batches end where `scan` says."""
        this, key, segment = self._pass, opening.key, opening.segment
        checked_from = 0
        if opening.claim is not None:
            this.standing.add(key)
            checked_from = opening.claim.position
        this.producers = scan.producers
        is_damaged = scan.seen_offset > scan.end_offset
        if segment is not None and (is_damaged or self._is_short(segment, scan.end_offset)):
            # Before anything is cut: behind one damaged batch there may be whole ones.
            return self._heal(segment, scan.end_offset, scan.seen_offset)
        steps: list[restart_events.RestartStep] = []
        if opening.bare_scan is not None and opening.claim is None:
            # First: a file that was cut just where a wrong checkpoint stands does not refute it any more.
            this.refuted.add(key)
            steps.append(restart_events.RevokeCheckpoints((key,)))
        if scan.position < opening.size_bytes:
            steps.append(restart_events.CutTail(key, scan.position))
        if this.is_fsync and checked_from < scan.position:
            # What is found is below the high watermark from now on, and a repetition of it is acknowledged.
            steps.append(restart_events.FlushFile(key))
        is_ended = segment is not None and segment.state is SegmentState.SEALING
        if segment is None:
            before = this.recovered[-1]
            this.recovered[-1] = replace(before, is_ended=True)
            this.to_confirm.append(restart_events.ConfirmRoll(before.key, key))
        elif is_ended:
            this.to_seal.append(restart_events.SealEnded(key))
        is_doubted = segment is not None and key.epoch == self._doubted_epoch
        this.recovered.append(
            restart_events.RecoveredSegment(
                key,
                scan.end_offset,
                scan.position,
                checked_from,
                scan.producers,
                is_confirmed=segment is not None,
                is_ended=is_ended,
                is_tail_doubted=is_doubted,
            )
        )
        return steps + self._next_file()

    def _is_short(self, segment: Segment | None, end_offset: int) -> bool:
        """Whether more was written than what ends there; of a roll that was not confirmed nothing is known."""
        return segment is not None and end_offset < self._written_end(segment)

    def _written_end(self, segment: Segment) -> int:
        claim = self._pass.checkpoints.get(segment.key)
        return written_end(
            segment,
            seen_end=max(self._pass.written.get(segment.key, -1), -1 if claim is None else claim.end_offset),
            log_start_offset=self._pass.log_start_offset,
        )

    # The end of a pass ----------------------------------------------------------------------------------------------
    def _serve(self) -> list[restart_events.RestartStep]:
        this = self._pass
        # Not noted before all of it is done: a flush before this step may fail yet.
        found_ends = [found.end_offset for found in this.recovered if found.is_confirmed]
        high_watermark = max([self._high_watermark, *found_ends])
        stale = tuple(key for key in this.checkpoints if key not in this.standing and key not in this.refuted)
        before: list[restart_events.RestartStep] = [restart_events.RevokeStale(stale)] if stale else []
        log = replace(self._log(this.active, this.inherited), high_watermark=high_watermark)
        return [*before, restart_events.Serve(log), *this.to_seal, *this.to_confirm]

    def _heal(self, segment: Segment, local_end: int, seen_offset: int = -1) -> list[restart_events.RestartStep]:
        known_end = max(self._written_end(segment), seen_offset)
        self._high_watermark = max(self._high_watermark, known_end)
        if segment.state is SegmentState.ACTIVE:
            self._doubted_epoch = segment.epoch
        assert self._pass.producers is not None, "a file was scanned, or none is there and the table was read"
        self._left_behind = (segment.key, self._pass.producers)
        return [restart_events.Heal(segment, local_end, known_end, self._log())]

    def _stop(self, failed: SegmentKey | None, why: str) -> list[restart_events.RestartStep]:
        this = self._pass
        this.recovered = [found for found in this.recovered if found.key != failed]
        to_seal = [step for step in this.to_seal if step.key != failed]
        return [restart_events.StopShard(why, self._log()), *to_seal]

    def _log(
        self, active: restart_events.RecoveredSegment | None = None, inherited: restart_events.Producers | None = None
    ) -> restart_events.RecoveredLog:
        """With what is read in any case."""
        doubted_epoch = -1 if self._doubted_epoch is None else self._doubted_epoch
        ended = tuple(found for found in self._pass.recovered if found.is_ended)
        return restart_events.RecoveredLog(ended, active, inherited, self._high_watermark, doubted_epoch)
