"""What the bucket must hold: of each complete segment the manifest that the metadata name, and all that this names.

Once all faults have ended, what was sealed by then becomes complete, and what no metadata name is swept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.stored.remote.manifests import ExpectedManifest, check_manifest
from stratalog.stored.remote.parts import check_whole_part
from stratalog_sim.product.bucket import Bucket

_POLL_S: Final = 0.1


class StoredCopies:
    """Listens to what is published and deleted."""

    def __init__(
        self, bucket: Bucket, table: Callable[[], ShardTable | None], fail: Callable[[str, str], None]
    ) -> None:
        self._bucket = bucket
        self._table = table
        self._fail = fail
        self._named: dict[SegmentKey, tuple[str, frozenset[str]]] = {}
        """Of complete segments: the manifest, and all objects of the copy."""
        self._owners: dict[str, SegmentKey] = {}
        """Of these objects."""
        self.checks = 0

    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        for change in change_set.changes:
            segment = getattr(change, "segment", None)
            if isinstance(segment, Segment):
                self._note(table.cluster_id, segment)

    def _note(self, cluster_id: str, segment: Segment) -> None:
        manifest_key, _ = self._named.get(segment.key, ("", None))
        is_stored = segment.remote.state is RemoteState.COMPLETE and segment.state is not SegmentState.DELETED
        if is_stored and manifest_key == segment.remote.manifest_key:
            return
        _, before = self._named.pop(segment.key, ("", frozenset[str]()))
        for key in before:
            del self._owners[key]
        if is_stored:
            self._check(cluster_id, segment)

    def _check(self, cluster_id: str, segment: Segment) -> None:
        """A complete copy is the sealed segment."""
        self.checks += 1
        expected = ExpectedManifest.of_segment(cluster_id, segment)
        try:
            manifest = check_manifest(self._content(expected.object_key), expected)
            for key, size_bytes in manifest.object_sizes.items():
                if len(self._content(key)) != size_bytes:
                    raise Corrupt("it has another size", source=key, position=0)
            digest, offset = EMPTY_DIGEST, segment.base_offset
            for part in manifest.parts:
                body = self._content(part.object_key)[part.position : part.position + part.size_bytes]
                index = check_whole_part(body, cluster_id, segment.key, part, digest_before=digest)
                digest, offset = index.header.digest_after, part.end_offset
        except NotFound as error:
            self._fail("nothing referenced is missing", f"{segment.key}: {error}")
            return
        except Corrupt as error:
            self._fail("a complete copy is the sealed segment", f"{segment.key}: {error}")
            return
        if segment.seal is None or (digest, offset) != (segment.seal.digest, segment.seal.end_offset):
            self._fail("a complete copy is the sealed segment", f"{segment.key}: it ends at {offset}, or is another")
        objects = frozenset((expected.object_key, *manifest.object_sizes))
        self._named[segment.key] = expected.object_key, objects
        self._owners |= dict.fromkeys(objects, segment.key)

    def _content(self, key: str) -> bytes:
        """Raises: NotFound."""
        found = self._bucket.objects.get(key)
        if found is None:
            raise NotFound(f"{key} is not in the bucket")
        return found[0]

    def has(self, key: str) -> bool:
        """Whether a complete copy consists of it, among others."""
        return key in self._owners

    def deleted(self, key: str) -> None:
        if key in self._owners:
            self._fail("nothing referenced is missing", f"{key} is deleted, {self._owners[key]} consists of it")

    # Once all faults have ended -------------------------------------------------------------------------------------
    async def wait_until_complete(self, within_s: float) -> None:
        """All segments that are sealed now."""
        since_s = asyncio.get_running_loop().time()
        left = {one.key for one in self._segments() if one.seal is not None}
        while left := left & {one.key for one in self._segments() if one.remote.state is not RemoteState.COMPLETE}:
            if asyncio.get_running_loop().time() > since_s + within_s:
                self._fail("what is sealed is stored", f"{within_s} s after all faults: {min(map(str, left))} is not")
                return
            await asyncio.sleep(_POLL_S)

    async def wait_until_swept(self, within_s: float) -> None:
        """Of segments that are complete now: nothing else lies in their folders."""
        left, since_s = self._orphans(), asyncio.get_running_loop().time()
        while left := left & self._orphans():
            if asyncio.get_running_loop().time() > since_s + within_s:
                self._fail("orphans are swept", f"{within_s} s later there is still {min(left)}")
                return
            await asyncio.sleep(_POLL_S)

    def _segments(self) -> list[Segment]:
        """Those that are not deleted."""
        table = self._table()
        assert table is not None, "the meta service runs"
        found = [one for shard in table.state.shards.values() for one in shard.segments.values()]
        return [one for one in found if one.state is not SegmentState.DELETED]

    def _orphans(self) -> set[str]:
        folders = {key.rsplit("/", 1)[0] for key, _ in self._named.values()}
        return {key for key in self._bucket.objects if key.rsplit("/", 1)[0] in folders and key not in self._owners}
