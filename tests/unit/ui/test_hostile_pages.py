"""Whatever others wrote is text on every page: ids of groups and clients, names of headers, keys, values, reasons."""

from __future__ import annotations

from html.parser import HTMLParser
from uuid import UUID

import pytest

from stratalog.admin_api.node_views import (
    ClientRow,
    GroupDetail,
    GroupLagRow,
    GroupMemberRow,
    GroupRow,
    GroupTopicRow,
    RecordHeader,
    ShownRange,
    ShownRecord,
    cut_bytes,
)
from stratalog.model.topic import Topic
from stratalog.model.views.cluster_lists import TopicLine, TroubleLine
from stratalog.ui.gather import Failure
from stratalog.ui.host import Process
from stratalog.ui.lists import ListState
from stratalog.ui.page import Page
from stratalog.ui.pages.records import _row, read_selection
from stratalog.ui.render import render
from stratalog.ui.words import TROUBLES

EVIL = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>\"'&\u202e\x1b"
LIST = ListState("/x", EVIL, EVIL, True, 2, 50, {"id": EVIL})
FAILED = [Failure(1, EVIL)]
TOPIC = Topic(EVIL, UUID(int=1), 2, 1, {EVIL: EVIL}, 0)


class Read(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def group_line() -> GroupRow:
    return GroupRow(
        group_id=EVIL, state=EVIL, kind="classic", members=2, lag=3, shards=2, uncommitted=1, unknown=1, node_id=1
    )


def pages() -> dict[str, Page]:
    line = group_line()
    group = GroupDetail(
        node_id=1,
        line=line,
        generation=1,
        assignor=EVIL,
        members=[GroupMemberRow(member_id=EVIL, instance_id=EVIL, client_id=EVIL, host=EVIL, shards=-1)],
        topics=[GroupTopicRow(topic=EVIL, shards=1, lag=1, uncommitted=1)],
        more_topics=2,
        items=[
            GroupLagRow(topic=EVIL, shard=0, committed=None, position=0, end=1, lag=1, member=EVIL),
            GroupLagRow(topic=EVIL, shard=1, committed=5, position=5, end=None, lag=None, member=EVIL),
        ],
        total=200,
    )
    client = ClientRow(client_id=EVIL, address=EVIL, listener=EVIL, principal=EVIL, idle_ms=70_000, node_id=1)
    raw = cut_bytes(EVIL.encode(), 1_000)
    record = ShownRecord(
        shard=0,
        offset=7,
        timestamp_ms=-1,
        key=raw,
        value=cut_bytes(b'{"a": "</pre><script>window.taken=1</script>"}', 1_000),
        headers=[RecordHeader(name=EVIL, value=raw), RecordHeader(name=EVIL, value=None)],
        more_headers=3,
    )
    shown = ShownRange(shard=0, log_start_offset=0, high_watermark=9, from_offset=7, next_offset=8, why_not=EVIL)
    paged = {"list": LIST, "total": 200, "thing": "row", "most": 100}
    records = {
        "topic": TOPIC,
        "selection": read_selection({"shard": "0", "from": "key", "key": EVIL, "at": EVIL}),
        "records": [_row(record)],
        "shown": [shown],
        "not_asked": FAILED,
        "shards": 2,
        "shards_shown": 1,
    }
    around = {"path": "/x", "limits": (10,), "is_ready": True, "older": "/older", "newer": "", "more": None}
    process = Process(EVIL, "ended", EVIL, False, {EVIL: EVIL})
    trouble = TroubleLine(EVIL, 1, 0, EVIL, (1,), EVIL)
    topic = TopicLine(EVIL, 1, 1, False, 0, 1, 1, 1, EVIL)
    about_kinds = {**paged, "kinds": [], "all_href": "/", "words": TROUBLES, "counted": "1 shard"}
    return {
        "groups": Page("groups.html", EVIL, "/groups", {"groups": [line], "not_asked": FAILED}, paged),
        "group": Page("group.html", EVIL, "/groups", {"group": group}, paged, (("/groups", EVIL),)),
        "clients": Page("clients.html", EVIL, "/clients", {"clients": [client], "not_asked": FAILED}, paged),
        "records": Page("records.html", EVIL, "/topics", records, around, is_live=False),
        "topics": Page("topics.html", EVIL, "/topics", {"topics": [topic]}, paged),
        "troubles": Page(
            "troubles.html", EVIL, "/troubles", {"kind": EVIL, "troubles": [trouble], "is_cut": True}, about_kinds
        ),
        "down": Page("down.html", EVIL, "/", {"processes": [process], "why_not": EVIL}),
        "error": Page("error.html", EVIL, "", {"words": EVIL}, {"leader": EVIL, "leader_url": ""}),
    }


@pytest.mark.fault("ui-shows-text-wrote")
@pytest.mark.parametrize("name", sorted(pages()))
def test_what_others_wrote_is_text_and_nothing_else(name: str) -> None:
    page = pages()[name]
    html = render(page, "/x?format=json")
    read = Read()
    read.feed(html)
    assert "img" not in read.tags and read.tags.count("script") == page.is_live
    assert not [one for one in read.attributes if one[0].startswith("on") or one[0] in ("style", "srcdoc")]
    links = [value for attribute, value in read.attributes if attribute in ("href", "action", "src")]
    assert all(link.startswith("/") or link == "#main" for link in links), links
    shown = "".join(read.text)
    assert "<script>window.taken=1</script>" in shown
    assert "\u202e" not in html and "\x1b" not in html and "\\u202e" in html


def test_a_state_of_the_list_goes_into_links_as_it_is() -> None:
    read = Read()
    read.feed(render(pages()["groups"], ""))
    values = [value for name, value in read.attributes if name == "value"]
    assert EVIL.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") in values
