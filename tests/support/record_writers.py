"""Whose batches lie at the offsets of an anomaly: the producer's id, epoch and sequences tell a repetition that was let
in (the same twice) from one that its client sent as something new (another epoch, or another id)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.formats.batches.record_batch import walk
from support.history import Anomaly, Place
from support.raw_client import RawClient

_TOLD = 10
_FETCH_BYTES = 64 << 10


def with_writers(bootstrap: str, found: Iterable[object]) -> Iterator[str]:
    """Each as text; to the first duplicates of each place is added who wrote them. `bootstrap`: of one node or some."""
    left = _TOLD
    for one in found:
        if isinstance(one, Anomaly) and one.kind == "duplicate" and left:
            left -= 1
            writers = "; ".join(_writer_of(bootstrap, one.place, offset) for offset in one.offsets)
            yield f"{one}: {writers}"
        else:
            yield str(one)


def _writer_of(bootstrap: str, place: Place, offset: int) -> str:
    answers = []
    for address in bootstrap.split(","):
        try:
            with RawClient(address) as client:
                fetched = client.fetch(
                    place[0], offset, partitions=(place[1],), max_wait_ms=0, partition_max_bytes=_FETCH_BYTES
                )[0]
        except OSError as error:
            answers.append(f"{address}: {error}")
            continue
        if fetched.error_code:
            answers.append(f"{address}: error {fetched.error_code}")
            continue
        for _, header in walk(fetched.records, source=f"{place} at {offset}", verify=False):
            if header.base_offset <= offset < header.end_offset:
                return (
                    f"offset {offset} lies in {header.base_offset} to {header.end_offset} of epoch "
                    f"{header.epoch}, by producer {header.producer_id} epoch {header.producer_epoch} from "
                    f"sequence {header.base_sequence}"
                )
    return f"offset {offset} cannot be read: {', '.join(answers)}"
