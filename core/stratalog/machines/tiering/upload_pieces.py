"""Which piece of a segment goes next: new data, parts to be merged or moved, parts to be taken home at the seal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.machines.tiering.bundles import IsBundleKey, bundled_run, merge_run, settled_bytes
from stratalog.machines.tiering.upload_events import PART_OVERHEAD_BYTES, Piece, UploadLimits
from stratalog.machines.tiering.upload_state import SegmentUpload
from stratalog.model.segment import RemotePart


class PieceChooser:
    """Knows the limits and which keys are bundles; what it says follows from the segment alone."""

    def __init__(self, limits: UploadLimits, is_bundle_key: IsBundleKey) -> None:
        self._limits = limits
        self._is_bundle_key = is_bundle_key

    def parts_to_rehome(self, upload: SegmentUpload) -> tuple[RemotePart, ...]:
        return bundled_run(upload.parts, self._is_bundle_key, self._limits.max_chunk_bytes)

    def parts_to_move(self, upload: SegmentUpload) -> tuple[RemotePart, ...]:
        """Committed parts to be moved: what the janitor wants out of a bundle, else what should merge. One move of a
        segment at a time."""
        if upload.is_moving:
            return ()
        if upload.rewrites:
            present = set(upload.parts)
            upload.rewrites = tuple(part for part in upload.rewrites if part in present)
            if upload.rewrites:
                return _neighbours(upload.rewrites)
        limits = self._limits
        is_waited_for = upload.is_direct and upload.unsent_bytes > 0
        merge_parts = limits.direct_merge_parts if is_waited_for else limits.merge_parts
        return merge_run(upload.parts, self._is_bundle_key, chunk_bytes=limits.chunk_bytes, merge_parts=merge_parts)

    def is_settled(self, run: tuple[RemotePart, ...]) -> bool:
        """Merged, these parts need not be moved again, not even at the seal, when they get an object of their own."""
        return sum(part.size_bytes for part in run) >= settled_bytes(self._limits.chunk_bytes)

    # A piece is noted on its upload: data that comes after the cut is counted apart from data that waited before it.
    def append_piece(self, upload: SegmentUpload, max_bytes: int) -> Piece:
        size_bytes = max(min(upload.waiting_bytes, max_bytes), upload.first_batch_bytes)
        upload.sent_bytes = upload.unsent_bytes
        upload.is_cut = size_bytes < upload.waiting_bytes
        upload.later_since_ms = None
        return Piece(upload.key, upload.next_offset, size_bytes)

    def move_piece(self, upload: SegmentUpload, run: tuple[RemotePart, ...]) -> Piece:
        upload.sent_bytes = 0
        upload.is_cut = True
        upload.later_since_ms = None
        return Piece(upload.key, run[0].base_offset, sum(part.size_bytes for part in run), run)

    def bundle(self, waiting: Iterable[SegmentUpload]) -> tuple[list[Piece], int]:
        """Those that go together, the first one in any case, and the bytes of the object. One whose task ended by a
        fault goes alone, or a segment that is at fault each time would keep all those back that it is packed with."""
        pieces: list[Piece] = []
        total = 0
        for upload in waiting:
            if pieces and upload.is_suspect:
                continue
            piece = self.bundle_piece(upload)
            size_bytes = piece.max_bytes + PART_OVERHEAD_BYTES
            is_full = total + size_bytes > self._limits.bundle_bytes or len(pieces) >= self._limits.bundle_parts
            if pieces and is_full:
                break
            pieces.append(piece)
            total += size_bytes
            if upload.is_suspect:
                break
        return pieces, total

    def bundle_piece(self, upload: SegmentUpload) -> Piece:
        run = self.parts_to_move(upload)
        return self.move_piece(upload, run) if run else self.append_piece(upload, self.most_bytes(upload))

    def most_bytes(self, upload: SegmentUpload) -> int:
        """Of its next chunk: twice what it sends one for, or what comes during an upload, if that is more: then the
        shard is fast or the store slow, and larger objects keep up. Never more than twice the node's own size for
        that."""
        limits = self._limits
        grown_bytes = min(upload.gathered_bytes, limits.max_chunk_bytes)
        return min(max(2 * upload.chunk_bytes, grown_bytes), limits.in_flight_bytes)

    def chunk_piece(self, upload: SegmentUpload) -> Piece:
        if upload.is_wholly_committed:
            return self.move_piece(upload, self.parts_to_rehome(upload))
        if upload.waiting_bytes < upload.chunk_bytes and not upload.is_sealed:
            return self.move_piece(upload, self.parts_to_move(upload))
        return self.append_piece(upload, self.most_bytes(upload))


def _neighbours(parts: Sequence[RemotePart]) -> tuple[RemotePart, ...]:
    """The first of `parts` and those that follow it without a gap."""
    run = [parts[0]]
    for part in parts[1:]:
        if part.base_offset != run[-1].end_offset:
            break
        run.append(part)
    return tuple(run)
