"""The operator's own client on the API server of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubernetes.aio.client import ApiClient, Configuration

from stratalog_operator.kube.client import Kubernetes
from support.api_server import TOKEN, ApiServer


@asynccontextmanager
async def kubernetes_of(api: ApiServer, token: str = TOKEN) -> AsyncIterator[Kubernetes]:
    settings = Configuration(host=api.url, ssl_ca_cert=str(api.certificates.ca))
    settings.api_key = {"BearerToken": f"Bearer {token}"}
    async with ApiClient(settings) as client:
        yield Kubernetes(client)
