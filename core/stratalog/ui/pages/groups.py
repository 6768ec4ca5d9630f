"""Consumer groups with their lag, one group shard by shard, and the clients that are connected.

Each node coordinates groups of its own, and has clients of its own: all of them are asked for the rows that the page
could need, and these are put in order here. A page behind the first `MAX_LISTED` rows is reached by a search.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from stratalog.admin_api.node_views import (
    CLIENT_COLUMNS,
    GROUP_COLUMNS,
    ClientList,
    GroupDetail,
    GroupList,
)
from stratalog.machines.plans.cluster_lists import page_of
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.views.cluster_lists import MAX_LISTED, ListAsk
from stratalog.ui.gather import Gatherer
from stratalog.ui.lists import ListState, address
from stratalog.ui.page import Page, Query


async def groups_page(gatherer: Gatherer, query: Query) -> Page:
    state = _with_order(ListState.read("/groups", query), "lag")
    answers, failures = await gatherer.of_all(_path("/v1/groups", state.ask), GroupList)
    rows = [line for answer in answers for line in answer.items]
    items, _ = page_of(rows, _merged(state.ask), lambda line: line.group_id, GROUP_COLUMNS)
    total = sum(answer.total for answer in answers)
    data = {"groups": items, "total": total, "not_asked": failures}
    extra = {"list": state, "total": total, "thing": "group", "most": MAX_LISTED}
    return Page("groups.html", "Consumer groups", "/groups", data, extra)


async def group_page(gatherer: Gatherer, query: Query) -> Page:
    group_id = query.get("id", "")
    state = ListState.read("/group", query, id=group_id)
    ask = state.ask
    path = "/v1/group?" + urlencode({"id": group_id, **_query(ask)})
    answers, failures = await gatherer.of_all(path, GroupDetail)
    if not answers:
        others = [one for one in failures if "coordinates no group" not in one.words]
        if others:
            raise Unavailable(f"group {group_id!r:.300} was not found; {others[0].words}")
        raise NotFound(f"there is no group {group_id!r:.300}")
    answer = answers[0]
    data = {"group": answer}
    extra = {"list": state, "total": answer.total, "thing": "shard"}
    return Page("group.html", group_id, "/groups", data, extra, (("/groups", "Groups"),))


async def clients_page(gatherer: Gatherer, query: Query) -> Page:
    state = ListState.read("/clients", query)
    answers, failures = await gatherer.of_all(_path("/v1/clients", state.ask), ClientList)
    rows = sorted(
        (line for answer in answers for line in answer.items), key=lambda line: (line.client_id, line.address)
    )
    items, _ = page_of(rows, _merged(state.ask), lambda line: line.words, CLIENT_COLUMNS)
    total = sum(answer.total for answer in answers)
    data = {"clients": items, "total": total, "not_asked": failures}
    extra = {"list": state, "total": total, "thing": "connection", "most": MAX_LISTED}
    return Page("clients.html", "Clients", "/clients", data, extra)


def _with_order(state: ListState, column: str) -> ListState:
    """Without another order, the largest come first."""
    return state if state.sort else replace(state, sort=column, is_descending=True)


def _query(ask: ListAsk) -> dict[str, object]:
    return {
        "search": ask.search,
        "sort": ask.sort,
        "descending": "true" if ask.is_descending else "false",
        "offset": ask.offset,
        "limit": ask.limit,
    }


def _path(path: str, ask: ListAsk) -> str:
    """Of each node the rows up to the end of the page, for any of them may be on it."""
    return address(path, **_query(replace(ask, offset=0, limit=min(MAX_LISTED, ask.offset + ask.limit))))


def _merged(ask: ListAsk) -> ListAsk:
    """The nodes have searched already."""
    return replace(ask, search="")
