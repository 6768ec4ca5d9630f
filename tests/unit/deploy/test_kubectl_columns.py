"""The end-to-end tests see an empty cell of `kubectl get` wherever it stands."""

from __future__ import annotations

from stratalog_e2e.columns import cells

HEAD = "NAME         READY   POOL   ID    ZONE     DISK%   STEP      REMAINING   AGE"
ROW = "main-hot-4           hot    4     zone-a           PodStop   0           74s"


def test_an_empty_cell_in_the_middle_is_seen() -> None:
    shown = cells(HEAD, ROW)
    assert [title for title, cell in shown.items() if not cell] == ["READY", "DISK%"]
    assert (shown["NAME"], shown["ZONE"], shown["STEP"], shown["AGE"]) == ("main-hot-4", "zone-a", "PodStop", "74s")


def test_a_row_that_ends_early_and_one_that_is_longer_than_its_head() -> None:
    assert cells("NAME   AGE", "a") == {"NAME": "a", "AGE": ""}
    assert cells("NAME   AGE", "a      12 days")["AGE"] == "12 days"
