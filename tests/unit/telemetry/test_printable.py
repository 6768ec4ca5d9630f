"""Text of others on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.telemetry.printable import printable, printable_json, printable_lines

STEERING = ["\x1b[2J", "\x9b31m", "\x07", "\r", "\x7f", "\u202e", "\u2028", "\x00", "\ud800", "\U000e0001"]


@pytest.mark.parametrize("evil", STEERING)
def test_what_steers_a_terminal_is_spelled_out(evil: str) -> None:
    shown = printable(f"before{evil}after\n")
    assert shown.isprintable() and shown.startswith("before\\") and "after\\n" in shown
    assert evil not in printable_lines(f"one{evil}\ntwo")


def test_plain_text_of_any_language_stays() -> None:
    for text in ("orders", "größe 日本 🎉", "[bold]x[/bold]", "a\\b"):
        assert printable(text) == text
    assert printable_lines("one\ntwo\n") == "one\ntwo\n"


@given(st.text())
def test_json_keeps_its_meaning_and_steers_nothing(text: str) -> None:
    document = json.dumps({"key": text}, indent=2, ensure_ascii=False)
    shown = printable_json(document)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == {"key": text}
