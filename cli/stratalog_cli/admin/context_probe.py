"""Which cluster the addresses of a new context are of, asked before it is kept.

What does not answer may be started later. What answers and is no part of Stratalog is a mistyped address. Blocking;
standard library only.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Final

from stratalog.admin_api.client import AdminClient
from stratalog.meta_api.json_shape import NotOfShape
from stratalog.meta_api.problems import from_problem
from stratalog.meta_api.wire import PROBLEM, foreign
from stratalog.model.errors import Conflict, StratalogError, Unavailable, WrongServer
from stratalog.model.tokens import Token, bearer
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.json_answers import object_of
from stratalog_cli.terminal.say import say

_TIMEOUT_S: Final = 5.0
_PATH: Final = "/v1/cluster"


def cluster_of(admin: str | None, meta: str | None, token: Token | None) -> str | None:
    """The id that the first node and the first instance of the meta service that answer say; None when none does,
    and then the reasons are on standard error.

    Raises: WrongServer, Conflict where they are of two clusters."""
    nodes = [] if admin is None else [address.strip() for address in admin.split(",")]
    instances = [] if meta is None else [url.strip().rstrip("/") for url in meta.split(",")]
    of_node = _first(nodes, lambda address: AdminClient(address, timeout_s=_TIMEOUT_S, token=token).status().cluster_id)
    of_meta = _first(instances, lambda url: _cluster_at(url, token))
    if of_node is not None and of_meta is not None and of_node != of_meta:
        raise Conflict(
            f"--admin {admin} is of cluster {of_node}, --meta {meta} of cluster {of_meta}: name the addresses of one"
        )
    return of_node or of_meta


def _first(places: Iterable[str], ask: Callable[[str], str]) -> str | None:
    for place in places:
        try:
            return ask(place)
        except WrongServer:
            raise
        except StratalogError as error:
            say(f"warning: {printable(str(error))}", to_stderr=True)
    return None


def _cluster_at(url: str, token: Token | None) -> str:
    """What an instance of the meta service says. Raises: WrongServer, or what the service says."""
    where = f"GET {url}{_PATH}"
    request = urllib.request.Request(url + _PATH)
    if token is not None:
        request.add_unredirected_header("Authorization", bearer(token()))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            raise _problem(refused.code, refused.read(), where) from None
    except http.client.BadStatusLine:
        raise WrongServer(foreign(where, "it speaks no HTTP")) from None
    except (OSError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unavailable(f"no meta service answers at {url} ({getattr(why, 'strerror', None) or why})") from None
    found = object_of(body).get("cluster_id")
    if not isinstance(found, str):
        raise WrongServer(foreign(where, "its answer is another"))
    return found


def _problem(status: int, body: bytes, where: str) -> StratalogError:
    try:
        return from_problem(PROBLEM.read(body))
    except NotOfShape:
        how = f"it answers {status}, and not as a meta service does"
        return Unavailable(f"{where}: {how}") if status >= 500 else WrongServer(foreign(where, how))
