"""What the end-to-end tests take for a fault of storage pods, and what not: judged by what was seen of them."""

from __future__ import annotations

from stratalog_e2e.observer import Sight, more_than_one_away, restarted


def sight(name: str, state: str = "ready", *, uid: str = "", restarts: int = 0) -> Sight:
    is_gone, is_leaving = state == "gone", state in ("leaving", "gone")
    return Sight(0.0, name, uid or f"uid of {name}", state == "ready", is_leaving, restarts, is_gone)


def test_two_that_were_ready_and_stay_must_not_be_away_at_once() -> None:
    seen = [sight("a"), sight("b"), sight("a", "starting"), sight("b", "starting")]
    assert more_than_one_away(seen) == ["a and b were away at the same time"]
    one_by_one = [sight("a"), sight("b"), sight("a", "starting"), sight("a"), sight("b", "starting"), sight("b")]
    assert more_than_one_away(one_by_one) == []


def test_pods_that_come_up_or_leave_for_good_are_not_away() -> None:
    assert more_than_one_away([sight("a", "starting"), sight("b", "starting"), sight("a"), sight("b")]) == []
    leaving = [
        sight("a"),
        sight("b"),
        sight("a", "leaving"),
        sight("b", "leaving"),
        sight("a", "gone"),
        sight("b", "gone"),
    ]
    assert more_than_one_away(leaving) == []


def test_a_pod_that_was_replaced_or_began_again_is_named() -> None:
    replaced = [sight("a", uid="1"), sight("a", "gone", uid="1"), sight("a", uid="2")]
    assert restarted(replaced) == ["a was replaced: 2 pods had that name"]
    assert restarted([sight("a"), sight("a", restarts=1)]) == ["a began again 1 times"]


def test_what_becomes_of_a_pod_that_leaves_for_good_is_no_restart() -> None:
    assert restarted([sight("a"), sight("a", "starting", restarts=1), sight("a", "gone", restarts=1)]) == []
