"""Which parts merge, which bundles go."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.tiering.bundles import (
    EMPTY_PLAN,
    BundleLimits,
    DeleteBundle,
    LivePart,
    StoredBundle,
    bundled_run,
    merge_run,
    plan_bundles,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

KEY = SegmentKey(UUID(int=1), 0, 0, 0)
MIB = 1 << 20
LIMITS = BundleLimits(delete_delay_ms=100, orphan_grace_ms=1_000, max_age_ms=10_000, rewrite_bytes=1_000)


def _is_bundle(key: str) -> bool:
    return key.startswith("b")


def _part(base: int, size: int, key: str = "b") -> RemotePart:
    return RemotePart(key, 0, size, base, base + 1)


def _merge(parts: list[RemotePart]) -> tuple[RemotePart, ...]:
    return merge_run(parts, _is_bundle, chunk_bytes=8 * MIB, merge_parts=16)


def test_fifteen_small_parts_are_left_alone() -> None:
    assert _merge([_part(n, 700) for n in range(15)]) == ()


def test_only_the_small_parts_at_the_end_merge() -> None:
    parts = [_part(0, 100_000), _part(1, 700, "chunk"), *(_part(n, 700) for n in range(2, 18))]
    assert _merge(parts) == tuple(parts[2:])


def test_merged_parts_merge_again_one_level_up() -> None:
    parts = [*(_part(n, 20_000) for n in range(16)), _part(16, 700)]
    assert _merge(parts) == tuple(parts)


def test_a_merge_stays_within_a_chunk() -> None:
    parts = [_part(n, 1_500_000) for n in range(16)]
    assert sum(part.size_bytes for part in _merge(parts)) <= 8 * MIB


def test_a_byte_is_rewritten_a_bounded_number_of_times_and_parts_stay_few() -> None:
    """A shard with one record of 1 KB per interval for a week of ten-second intervals."""
    parts: list[RemotePart] = []
    moved = 0
    most = 0
    for offset in range(60_480):
        parts.append(RemotePart("b", 0, 1_600, offset, offset + 1))
        while run := _merge(parts):
            size = sum(part.size_bytes for part in run) - 600 * (len(run) - 1)
            at = parts.index(run[0])
            parts[at : at + len(run)] = [RemotePart("b", 0, size, run[0].base_offset, run[-1].end_offset)]
            moved += size
        most = max(most, len(parts))
    assert most < 100
    assert moved < 8 * 60_480 * 1_000


def test_taking_home_begins_at_the_first_bundled_part_and_stops_at_a_chunk() -> None:
    parts = [_part(0, 10, "chunk"), _part(1, 10), _part(2, 10), _part(3, 10, "chunk"), _part(4, 10)]
    assert bundled_run(parts, _is_bundle, 1_000) == (parts[1], parts[2])
    assert bundled_run(parts, _is_bundle, 5) == (parts[1],)
    assert bundled_run(parts[:1], _is_bundle, 1_000) == ()


def _stored(key: str, size: int = 1_000, *, count: int | None = None, protected: bool = False) -> StoredBundle:
    return StoredBundle(key, size, 0, count, protected)


def _live(key: str, *sizes: int) -> dict[str, list[LivePart]]:
    return {key: [LivePart(KEY, _part(n, size, key)) for n, size in enumerate(sizes)]}


def test_a_bundle_that_was_never_referenced_waits_for_the_orphan_grace() -> None:
    assert plan_bundles([_stored("b")], {}, EMPTY_PLAN, 999, LIMITS).deletions == ()
    assert plan_bundles([_stored("b")], {}, EMPTY_PLAN, 1_000, LIMITS).deletions == (DeleteBundle("b"),)


def test_f35_a_bundle_that_lost_its_last_reference_waits_for_the_longest_read() -> None:
    """F35."""
    plan = plan_bundles([_stored("b")], _live("b", 900), EMPTY_PLAN, 5_000, LIMITS)
    plan = plan_bundles([_stored("b")], {}, plan, 5_050, LIMITS)
    assert plan.deletions == ()
    plan = plan_bundles([_stored("b")], {}, plan, 5_149, LIMITS)
    assert plan.deletions == ()
    plan = plan_bundles([_stored("b")], {}, plan, 5_150, LIMITS)
    assert plan.deletions == (DeleteBundle("b"),)


def test_protected_bundles_are_not_looked_at() -> None:
    plan = plan_bundles([_stored("b", protected=True)], {}, EMPTY_PLAN, 10**9, LIMITS)
    assert (plan.deletions, plan.rewrites) == ((), ())


def test_a_half_dead_bundle_is_rewritten_and_a_mostly_live_one_is_not_until_it_is_old() -> None:
    half = plan_bundles([_stored("b")], _live("b", 400), EMPTY_PLAN, 0, LIMITS)
    assert [rewrite.key for rewrite in half.rewrites] == ["b"]
    mostly = _live("b", 300, 300)
    assert plan_bundles([_stored("b", count=3)], mostly, EMPTY_PLAN, 9_999, LIMITS).rewrites == ()
    old = plan_bundles([_stored("b", count=3)], mostly, EMPTY_PLAN, 10_000, LIMITS)
    assert "1 of 3 parts are dead" in old.rewrites[0].reason
    assert plan_bundles([_stored("b", count=2)], mostly, EMPTY_PLAN, 10**9, LIMITS).rewrites == ()


def test_one_pass_moves_a_bounded_number_of_bytes_but_always_something() -> None:
    stored = [_stored(f"b{n}", size=10_000) for n in range(5)]
    live: dict[str, list[LivePart]] = {}
    for n in range(5):
        live |= _live(f"b{n}", 600)
    assert len(plan_bundles(stored, live, EMPTY_PLAN, 0, LIMITS).rewrites) == 2
    huge = _live("b", 400_000)
    assert len(plan_bundles([_stored("b", size=1_000_000)], huge, EMPTY_PLAN, 0, LIMITS).rewrites) == 1


@pytest.mark.fault("bundle-cannot-emptied-segment")
def test_bundles_that_cannot_be_emptied_do_not_use_up_what_a_pass_may_move() -> None:
    """They were first in the listing, and all the others waited forever."""
    stuck = [_stored(f"a{n}", size=10_000) for n in range(3)]
    later = [_stored(f"b{n}", size=10_000) for n in range(6)]
    live: dict[str, list[LivePart]] = {}
    for bundle in stuck + later:
        live |= _live(bundle.key, 600)
    plan, emptied = EMPTY_PLAN, set[str]()
    for _ in range(6):
        plan = plan_bundles([b for b in stuck + later if b.key not in emptied], live, plan, 0, LIMITS)
        emptied |= {rewrite.key for rewrite in plan.rewrites if rewrite.key.startswith("b")}
    assert emptied == {bundle.key for bundle in later}
    assert set(plan.asked) <= {bundle.key for bundle in stuck + later}
