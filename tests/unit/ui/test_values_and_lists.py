"""How the cluster UI shows bytes of records, and how a list keeps its state in its address."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.admin_api.node_views import cut_bytes
from stratalog.model.errors import InvalidRequest
from stratalog.telemetry.plots import COLOURS, DARK_COLOURS, line_plot
from stratalog.ui.host import why_no_records
from stratalog.ui.lists import ListState, place
from stratalog.ui.node_addresses import is_plain_url
from stratalog.ui.pages.records import time_ms
from stratalog.ui.render import static_file
from stratalog.ui.values import indented_json, show

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(), JSON, max_size=4))
def test_indented_json_means_the_same(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        indented = indented_json(text)
        assert indented is not None and json.loads(indented) == json.loads(text)


def test_numbers_and_repeated_keys_stay_as_they_were_written() -> None:
    written = '{"a":1.10,"a":12345678901234567890123,"e":1E400,"n":{},"l":[]}'
    shown = indented_json(written)
    assert shown is not None
    assert shown.split("\n") == [
        "{",
        '  "a": 1.10,',
        '  "a": 12345678901234567890123,',
        '  "e": 1E400,',
        '  "n": {},',
        '  "l": []',
        "}",
    ]
    assert indented_json('"text"') is None and indented_json("{no") is None and indented_json("[" * 100_000) is None


@pytest.mark.parametrize(
    "raw, kind, part",
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b'{"a": [1]}', "json", '  "a": ['),
        (b"plain", "text", "plain"),
        ("a\u202egnp.txt".encode(), "text", "a\\u202egnp.txt"),
        (b"\x1b[2Jtext of some length", "text", "\\x1b[2Jtext"),
        (bytes(range(256)), "binary", "000000  00 01 02"),
        (b"\xff\xfe", "binary", "ff fe"),
    ],
)
def test_bytes_are_shown_as_what_they_are(raw: bytes | None, kind: str, part: str) -> None:
    shown = show(cut_bytes(raw, 1_000))
    assert (shown.kind, shown.is_cut) == (kind, False) and part in shown.text


def test_a_value_that_was_cut_is_said_even_inside_a_character() -> None:
    shown = show(cut_bytes(("é" * 100).encode(), 101))
    assert (shown.kind, shown.is_cut, shown.size, shown.text) == ("text", True, 200, "é" * 50)


@given(st.binary(max_size=300))
def test_no_bytes_hold_anything_that_steers_a_reader(raw: bytes) -> None:
    shown = show(cut_bytes(raw, 200))
    assert all(line.isprintable() for line in (shown.text + "\n" + shown.preview).split("\n"))


# Lists ----------------------------------------------------------------------------------------------------------------
@given(st.text(max_size=40), st.integers(1, 50), st.booleans())
def test_the_address_of_a_list_keeps_its_state(search: str, page: int, is_descending: bool) -> None:
    state = ListState("/topics", search.strip(), "name", is_descending, page, 25, {"kind": "a&b"})
    query = {name: values[0] for name, values in parse_qs(urlsplit(state.href()).query).items()}
    again = ListState.read("/topics", query, kind=query["kind"])
    assert again == state
    assert ListState.read("/topics", {"search": search}).sort == ""


def test_a_column_is_sorted_the_other_way_round_when_it_is_chosen_again() -> None:
    state = ListState("/topics", page=3)
    assert state.sorted_by("hot", is_number=True) == "/topics?sort=hot&order=desc"
    assert state.sorted_by("name", is_number=False) == "/topics?sort=name"
    there = ListState("/topics", sort="hot", is_descending=True)
    assert there.sorted_by("hot", is_number=True) == "/topics?sort=hot"
    assert (state.pages(0), state.pages(50), state.pages(51)) == (1, 1, 2)


@pytest.mark.parametrize("query", [{"page": "-1"}, {"page": "x"}, {"size": "9999"}, {"page": "1" * 30}])
def test_what_is_not_a_number_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        ListState.read("/topics", query)


@given(st.text(min_size=1, max_size=30))
def test_a_name_of_any_characters_stays_one_part_of_a_path(name: str) -> None:
    made = place("topics", name, "records")
    assert made.count("/") == 3 and not set(made) & set("<>'\"\\ \n?#&")


def test_a_time_is_read_as_utc_unless_it_has_a_zone() -> None:
    assert time_ms("1700000000000") == 1_700_000_000_000
    assert time_ms("2023-11-14 22:13:20") == 1_700_000_000_000 == time_ms("2023-11-14T23:13:20+01:00")
    with pytest.raises(InvalidRequest, match="YYYY-MM-DD"):
        time_ms("yesterday")


# Access to records ----------------------------------------------------------------------------------------------------
def test_a_port_that_others_reach_shows_records_of_other_nodes_only_with_a_token() -> None:
    assert why_no_records("127.0.0.1", has_token=False) is None is why_no_records("0.0.0.0", has_token=True)
    for host in ("0.0.0.0", "::", "10.0.0.1", "meta"):
        assert "auth.token.file" in (why_no_records(host, has_token=False) or "")


@pytest.mark.parametrize(
    "url, is_plain",
    [
        ("http://127.0.0.1:9644/", True),
        ("http://[fd00::2]:9644/", True),
        ("https://node-1.stratalog.svc:9644", True),
        ("javascript:alert(1)", False),
        ("http://127.0.0.1:9644/path", False),
        ("http://user@127.0.0.1:9644/", False),
        ("http://127.0.0.1:9644/?a", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_only_the_plain_address_of_a_port_is_asked_and_linked(url: str, is_plain: bool) -> None:
    assert is_plain_url(url) is is_plain


def test_a_drawing_holds_no_script_and_a_gap_stays_a_gap() -> None:
    series = [("node <1>", [(0, 1.0), (2_000, None), (4_000, 3.0)]), ("node 2", [])]
    for is_dark in (False, True):
        drawn = line_plot("Produced", series, lambda value: f"{value:.0f} B/s", is_dark).decode()
        assert drawn.startswith("<svg") and "<script" not in drawn and "<1>" not in drawn
        assert "B/s" in drawn and "00:00:0" in drawn
    assert "nothing known yet" in line_plot("Produced", [], str).decode()


def test_the_legend_has_the_colours_of_the_lines() -> None:
    style = static_file("ui.css").decode()
    light, _, dark = style.partition(".s7{background:#6b6b6b}")
    for number, (one, other) in enumerate(zip(COLOURS, DARK_COLOURS, strict=True)):
        assert f".s{number}{{background:{one}}}" in light + ".s7{background:#6b6b6b}"
        assert f".s{number}{{background:{other}}}" in dark
