"""Names of upload attempts: gives them out, and remembers which may still land.

A name is never used twice: a failed or doubtful attempt is followed by one under a new name (non-stop write). The
numbers of one process life begin at random, so that even a store that overwrites, under a lock that was not handed on,
would not let one life's bundle replace another's.
Invariant: a key is protected from the sweep from before its put begins until its commit is known, and a doubtful one
until `doubt_ms` have passed since.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.ids import SegmentKey

_ATTEMPT_SPAN = 1 << 48
_BUNDLE_NUMBERS = 10**12


class Attempts:
    """The attempts of one node's life."""

    def __init__(
        self, names: ObjectNames, node_id: int, rng: random.Random, clock_ms: Callable[[], int], doubt_ms: int
    ) -> None:
        self.names = names
        self._node_id = node_id
        self._clock_ms = clock_ms
        self._doubt_ms = doubt_ms
        self._last_attempt = rng.randrange(_ATTEMPT_SPAN)
        self._last_bundle = 0
        self._in_flight: dict[str, None] = {}
        self._doubtful: dict[str, int] = {}

    def next_attempt(self) -> int:
        self._last_attempt += 1
        return self._last_attempt

    def chunk(self, key: SegmentKey, base_offset: int, end_offset: int, lock_epoch: int, attempt: int) -> str:
        return self.names.chunk(
            key, base_offset, end_offset, node_id=self._node_id, lock_epoch=lock_epoch, attempt=attempt
        )

    def packed(self, key: SegmentKey, base_offset: int, end_offset: int, lock_epoch: int, attempt: int) -> str:
        return self.names.packed(
            key, base_offset, end_offset, node_id=self._node_id, lock_epoch=lock_epoch, attempt=attempt
        )

    def index(self, key: SegmentKey, end_offset: int, lock_epoch: int) -> str:
        return self.names.index(
            key,
            key.base_offset,
            end_offset,
            node_id=self._node_id,
            lock_epoch=lock_epoch,
            attempt=self.next_attempt(),
        )

    def manifest(self, key: SegmentKey, end_offset: int, lock_epoch: int, attempt: int) -> str:
        return self.names.manifest(
            key, key.base_offset, end_offset, node_id=self._node_id, lock_epoch=lock_epoch, attempt=attempt
        )

    def keys(self, key: SegmentKey, from_offset: int, to_offset: int, lock_epoch: int, attempt: int) -> str:
        """`attempt`: that of the manifest which will name it."""
        return self.names.keys(
            key, from_offset, to_offset, node_id=self._node_id, lock_epoch=lock_epoch, attempt=attempt
        )

    def next_bundle_number(self) -> int:
        self._last_bundle = (self._last_bundle + 1) % _BUNDLE_NUMBERS
        return self._last_bundle

    def bundle(self, lock_epoch: int, number: int, attempt: int) -> str:
        return self.names.bundle(node_id=self._node_id, lock_epoch=lock_epoch, number=number, attempt=attempt)

    # What may still land --------------------------------------------------------------------------------------------
    @contextmanager
    def in_flight(self, *object_keys: str) -> Iterator[None]:
        """Protect the keys while the body runs; if it raises, they stay protected as doubtful."""
        self._in_flight.update(dict.fromkeys(object_keys))
        try:
            yield
        except BaseException:
            self._doubtful.update(dict.fromkeys(object_keys, self._clock_ms()))
            raise
        finally:
            for object_key in object_keys:
                self._in_flight.pop(object_key, None)

    def is_protected(self, object_key: str) -> bool:
        if object_key in self._in_flight:
            return True
        since = self._doubtful.get(object_key)
        if since is None:
            return False
        if self._clock_ms() - since < self._doubt_ms:
            return True
        del self._doubtful[object_key]
        return False

    def has_any_below(self, prefix: str) -> bool:
        """Whether an attempt below this prefix is in flight."""
        return any(object_key.startswith(prefix) for object_key in self._in_flight)

    def expire(self) -> int:
        """Forget old doubts. Returns how many attempts are still doubtful."""
        oldest = self._clock_ms() - self._doubt_ms
        self._doubtful = {key: since for key, since in self._doubtful.items() if since > oldest}
        return len(self._doubtful)
