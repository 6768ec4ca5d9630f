"""kopf in the operator's event loop: it starts wherever the image runs."""

from __future__ import annotations

import getpass

import kopf
import pytest

from stratalog_operator.handlers import Watch


async def login() -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server="https://127.0.0.1:1")


async def test_it_starts_as_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's user has a number alone."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr(getpass, "getuser", nobody)
    watch = Watch((), lambda key, is_named_only: None, login)
    await watch.start()
    await watch.stop()
