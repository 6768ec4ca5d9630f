"""An S3 URL that leaves things open takes them from the usual AWS_* environment variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.model.errors import Unavailable
from stratalog.objects import ObjectStore
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server

Opener = Callable[..., ObjectStore]


@pytest.mark.real_s3
async def test_credentials_region_and_endpoint_come_from_the_environment(
    versitygw: S3Server, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw.endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    store = opener(f"s3://{versitygw.bucket}/environment")
    await store.put("a/one", [b"x"])
    assert await store.get("a/one") == b"x"


@pytest.mark.real_s3
async def test_a_wrong_secret_is_denied_and_said_so(versitygw: S3Server, opener: Opener) -> None:
    store = opener(versitygw.url().replace(SECRET_KEY, "wrong"))
    for call in (store.put("a/one", [b"x"]), store.get("a/one"), store.delete(["a/one"])):
        with pytest.raises(Unavailable, match="credentials"):
            await call
