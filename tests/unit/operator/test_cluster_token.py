"""The operator shows the token of each cluster to its meta service, as the Secret has it in that pass."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.telemetry.door_key import DoorKey
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.metas import HttpMetaDoors
from stratalog_operator.observe.cluster_token import token_in
from support.golden_specs import cluster
from support.meta_worlds import HandClock

OLD, NEW = "the-old-token-of-all", "the-new-token-of-all"


def secret(**data: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


@pytest.mark.parametrize(("text", "token"), [(OLD, OLD), (f"{OLD}\n", OLD), (f"{NEW}\n{OLD}\n", NEW)])
def test_the_first_line_of_the_secrets_key_is_shown(text: str, token: str) -> None:
    assert token_in(secret(token=text, other="x"), "it") == token


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({}, "has no key token"),
        ({"data": None}, "has no key token"),
        (secret(password=OLD), "has no key token"),
        ({"data": {"token": 7}}, "has no key token"),
        ({"data": {"token": "%%%"}}, "other characters"),
        (secret(token="ß" * 20), "other characters"),
        (secret(token=""), "holds no token"),
        (secret(token="short"), "line 1"),
    ],
)
def test_a_secret_that_holds_no_token_is_told_of_and_not_repeated(held: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        token_in(held, "Secret data/main-token")
    assert words in str(refused.value) and "Secret data/main-token" in str(refused.value)


async def test_a_token_that_changes_is_shown_from_the_next_pass_on() -> None:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    tokens = [OLD]
    server = MetaServer(service, key=DoorKey(lambda: tuple(tokens)))
    url = await server.start("127.0.0.1", 0)
    doors, main = HttpMetaDoors(lambda _: url), cluster()
    with pytest.raises(Unavailable):
        await (await doors.door(main, "")).sight.look()
    assert (await (await doors.door(main, OLD)).sight.look()).cluster_id == service.cluster_id
    tokens[:] = [NEW]
    with pytest.raises(Unavailable):
        await (await doors.door(main, OLD)).sight.look()
    assert (await (await doors.door(main, NEW)).sight.look()).cluster_id == service.cluster_id
    await doors.close()
    await server.close()
    await service.close()
