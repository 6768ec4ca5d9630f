"""Where the API server is and who we are to it: the service account of our pod, else the user's kubeconfig.

The token of a service account is read again as it is renewed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubernetes.aio.client import ApiClient
from kubernetes.aio.client import Configuration as Configuration

from stratalog.model.errors import InvalidRequest
from stratalog_operator.kube.client import Kubernetes

_OUR_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Account:
    """What a program needs to be us."""

    server: str
    ca_path: str | None
    is_insecure: bool
    token: str | None
    certificate_path: str | None
    key_path: str | None


async def configuration(environment: Mapping[str, str]) -> Configuration:
    """Raises: InvalidRequest where neither is there."""
    found = Configuration()
    if environment.get("KUBERNETES_SERVICE_HOST"):
        from kubernetes.aio.config.incluster_config import load_incluster_config

        load_incluster_config(found)  # type: ignore[no-untyped-call]  # typed nowhere upstream
        return found
    # Imported only here: what it needs for all ways to log in costs memory that a pod never uses.
    from kubernetes.aio.config import ConfigException, load_kube_config

    try:
        await load_kube_config(client_configuration=found, persist_config=False)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise InvalidRequest(
            f"no Kubernetes: this is not a pod with a service account, and there is no kubeconfig ({error}); set "
            f"KUBECONFIG"
        ) from error
    return found


@asynccontextmanager
async def connected(found: Configuration) -> AsyncIterator[Kubernetes]:
    async with ApiClient(found) as api:
        yield Kubernetes(api)


async def account(found: Configuration) -> Account:
    """Asked again when a token is not taken any more."""
    key = await found.get_api_key_with_prefix("BearerToken") or ""
    return Account(
        str(found.host),
        found.ssl_ca_cert,
        not found.verify_ssl,
        key[len(_BEARER) :].strip() if key.lower().startswith(_BEARER) else key or None,
        found.cert_file,
        found.key_file,
    )


def own_namespace(environment: Mapping[str, str]) -> str:
    """Where this process is: its pod's, else `default`."""
    named = environment.get("POD_NAMESPACE")
    if named:
        return named
    try:
        return _OUR_NAMESPACE.read_text().strip()
    except OSError:
        return "default"


def identity(environment: Mapping[str, str]) -> str:
    """No other process has it, nor had one before in the same pod."""
    return f"{environment.get('POD_NAME') or os.uname().nodename}_{os.urandom(4).hex()}"
