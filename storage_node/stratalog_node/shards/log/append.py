"""The interface through which requests offer batches to a shard and get one answer for each batch.

Lives on the event loop.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from stratalog.machines.leading.producer_table import SequenceFault
from stratalog.model.append import AppendFailure
from stratalog.model.errors import DiskFull, OutcomeUnknown, StratalogError

AppendRefusal: TypeAlias = AppendFailure | SequenceFault


class AppendRequest(Protocol):
    """One or more batches offered together. `slot` is the request's own name for one of them
    (`OfferedBatch.slot`). A second answer for a slot changes nothing."""

    def appended(self, slot: Any, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        """In the log, and acknowledged as it was asked for. `append_time_ms` is -1 unless the log gave the time."""

    def refused(self, slot: Any, why: AppendRefusal, message: str, log_start_offset: int) -> None:
        """The batch is not in the log, or its outcome is unknown: see `AppendFailure`."""


def failure_of(error: StratalogError) -> AppendFailure:
    """What a write that met this error says of its batches."""
    if isinstance(error, OutcomeUnknown):
        return AppendFailure.OUTCOME_UNKNOWN
    return AppendFailure.NO_ROOM if isinstance(error, DiskFull) else AppendFailure.WRITE_FAILED
