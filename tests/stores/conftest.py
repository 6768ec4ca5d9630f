"""The stores that the one suite runs on, and the servers behind them, started once for the session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest

from stratalog.objects import ObjectStore, StoreSettings, open_store
from support.azure_server import NO_AZURITE, AzureServer, azurite_program, azurite_server
from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.gcs_server import GcsServer, gcs_server
from support.s3_servers import NO_VERSITYGW, S3Server, moto_server, versitygw_binary, versitygw_server

PATIENT = StoreSettings(attempt_timeout_ms=10_000, deadline_ms=20_000, backoff_ms=5, backoff_cap_ms=50)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if versitygw_binary() is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(tmp_path_factory.mktemp("versitygw") / "buckets") as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    if azurite_program() is None:
        pytest.skip(NO_AZURITE)
    with azurite_server(tmp_path_factory.mktemp("azurite") / "azurite.log") as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    """One member, for all tests that need no particular one; each has a prefix of its own."""
    if etcd_binary() is None:
        pytest.skip(NO_ETCD)
    with etcd_servers(tmp_path_factory.mktemp("etcd"), 1) as servers:
        yield servers


STORES = [
    "directory",
    "memory",
    "moto",
    pytest.param("versitygw", marks=pytest.mark.real_s3),
    "gcs",
    pytest.param("azurite", marks=pytest.mark.azurite),
]


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A place of its own for each test."""
    match request.param:
        case "directory":
            return str(tmp_path_factory.mktemp("objects") / "store")
        case "memory":
            return "memory:"
        case name:
            server: S3Server | GcsServer | AzureServer = request.getfixturevalue(name)
            return server.url(f"tests/{uuid4().hex}")


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[ObjectStore]:
    opened = open_store(store_url, PATIENT)
    yield opened
    await opened.close()


@pytest.fixture
async def opener() -> AsyncIterator[Callable[..., ObjectStore]]:
    """Opens stores and closes them when the test ends."""
    opened: list[ObjectStore] = []

    def open_one(url: str, settings: StoreSettings = PATIENT) -> ObjectStore:
        opened.append(open_store(url, settings))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()
