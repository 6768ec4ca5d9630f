"""What the node's pages are made of: drawings, links, and a look at records that stays small."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import Corrupt
from stratalog_node.admin.pages.node_views import RECORDS_SHOWN, look_at_records
from stratalog_node.admin.pages.plots import levels, plot, rates
from stratalog_node.admin.pages.shell import link, table, text
from stratalog_node.measures.history import History, Sample, Sums
from support.shard_rig import make_batch


def samples(*appended: int) -> list[Sample]:
    return [Sample(10_000 * at, Sums(value, 0, value, 0)) for at, value in enumerate(appended)]


def test_rates_come_from_counters_and_a_counter_that_begins_again_gives_none() -> None:
    found = rates(samples(0, 1_000, 3_000, 500, 1_500), lambda sums: sums.appended_bytes)
    assert found == [(10_000, 100.0), (20_000, 200.0), (40_000, 100.0)]
    assert levels(samples(5, 7), lambda sums: sums.upload_lag_bytes) == [(0, 5.0), (10_000, 7.0)]


def test_a_drawing_stays_in_its_frame_and_tells_the_newest_and_the_highest() -> None:
    drawn = plot("Read", [(0, 4.0), (60_000, 12.0), (120_000, 0.0)], lambda value: f"{value:.0f} B/s")
    assert "<b>0 B/s</b>" in drawn and "at most 12 B/s in 2 min" in drawn
    points = drawn.split('points="')[1].split('"')[0].split()
    assert [point.split(",")[0] for point in points] == ["0.0", "150.0", "300.0"]
    assert all(0 <= float(point.split(",")[1]) <= 70 for point in points)
    assert "polyline" not in plot("Read", [(0, 4.0)], str), "one point is no course"
    assert "polyline" in plot("Lag", [(0, 0.0), (1, 0.0)], str), "nothing is behind, and that is a course, too"


@given(st.text(), st.text())
def test_whatever_a_name_holds_is_text_and_its_link_stays_here(name: str, value: str) -> None:
    made = link(("topics", name), name, at=value)
    place = made.split('href="')[1].split('"')[0]
    assert place.startswith("/topics/") and not set(place) & set("<>'\\ \n") and place.count("/") == 2
    shown = text(name)
    assert not set(shown) & set("<>\"'")
    assert table(("#a", "~b"), [(shown, made)]).count("<td") == 2


class OneShard:
    """A shard whose log is these batches."""

    log_start_offset = 0

    def __init__(self, *batches: bytes) -> None:
        self._data = b"".join(batches)

    async def read(self, _offset: int, _max_bytes: int) -> list[bytes]:
        return [self._data]


async def test_a_look_at_records_begins_where_it_is_asked_and_stays_short() -> None:
    values = [f"v{number}".encode() for number in range(50)]
    shard = cast(Any, OneShard(make_batch(values, base_offset=100)))
    found = await look_at_records(shard, 110)
    assert [one.offset for one in found] == list(range(110, 110 + RECORDS_SHOWN))
    assert found[0].value == b"v10"


async def test_a_batch_that_is_too_large_to_open_is_refused() -> None:
    shard = cast(Any, OneShard(make_batch([bytes(20 << 20)], base_offset=0, compression=1)))
    with pytest.raises(Corrupt):
        await look_at_records(shard, 0)


async def test_a_sample_that_cannot_be_taken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.measures.history._PERIOD_S", 0)
    asked = 0

    async def take() -> Sums:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("gone")
        if asked == 5:
            raise KeyboardInterrupt
        return Sums(asked, 0, 0, 0)

    history = History(take, lambda: 7)
    with pytest.raises(KeyboardInterrupt):
        await history.run()
    assert [one.sums.appended_bytes for one in history.samples] == [2, 3, 4]
