"""One API server for a process of the run, with the definitions taken; started by the first test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog_operator.resources.definitions import definition
from stratalog_operator.resources.kinds import KINDS
from support.api_server import NO_API_SERVER, ApiServer, api_server, apiserver_binary


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if apiserver_binary() is None:
        pytest.skip(NO_API_SERVER)
    with api_server(tmp_path_factory.mktemp("api-server")) as server:
        for kind in KINDS:
            server.define(definition(kind))
        yield server
