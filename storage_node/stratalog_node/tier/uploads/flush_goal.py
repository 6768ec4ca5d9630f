"""What a flush waits for: everything that is committed now is in the object store, what is sealed now is complete."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.machines.tiering.upload_state import UploaderStatus
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.shards.copies.shard_view import Shards


class FlushGoal:
    """`is_ours` says whether a segment is to be uploaded by this node, `latest` what is known of one, `commit_offset`
    up to where it is committed."""

    def __init__(
        self,
        shards: Shards,
        *,
        is_ours: Callable[[Segment], bool],
        latest: Callable[[SegmentKey], Segment | None],
        commit_offset: Callable[[SegmentKey], int | None],
    ) -> None:
        self._is_ours = is_ours
        self._latest = latest
        self._commit_offset = commit_offset
        self._left: dict[SegmentKey, int] = {}
        for view in shards.all():
            limit = min(view.high_watermark, view.last_stable_offset)
            for segment in view.segments:
                if is_ours(segment):
                    end = limit if segment.end_offset is None else min(limit, segment.end_offset)
                    self._left[segment.key] = max(end, segment.base_offset)

    @property
    def segments(self) -> int:
        """How many were not there yet when they were looked at last."""
        return len(self._left)

    def missed(self, status: UploaderStatus, timeout_ms: int) -> Unavailable:
        return Unavailable(
            f"upload: not in the object store after {timeout_ms} ms: segments {self.segments:,}, unsent bytes "
            f"{status.unsent_bytes:,} (held segments {len(status.held):,}, store away for {status.store_away_ms} ms, "
            f"lock epoch {status.lock_epoch}): see the node's status"
        )

    def is_waited_for(self, *, has_lock: bool) -> bool:
        """Look again."""
        self._left = {key: end for key, end in self._left.items() if not self._is_flushed(key, end, has_lock)}
        return bool(self._left)

    def _is_flushed(self, key: SegmentKey, end_offset: int, has_lock: bool) -> bool:
        segment = self._latest(key)
        if segment is None or not self._is_ours(segment):
            return True
        if not has_lock or segment.seal is not None:
            return False  # a sealed one is done when it is complete, and then it is not ours any more
        committed = self._commit_offset(key)
        return end_offset == segment.base_offset or (committed is not None and committed >= end_offset)
