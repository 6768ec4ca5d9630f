"""Certificates for etcd that are replaced while the meta service runs: each new connection uses those that were read
last, and found usable.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import POLL_S, TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog_meta.stores.etcd.access import AccessFiles, EtcdAccess
from stratalog_meta.stores.etcd.client import EtcdClient


def identity_of(files: AccessFiles) -> TlsIdentity:
    """Blocking. Raises: InvalidRequest for what cannot be used."""
    ca, certificate, key = ("" if one is None else str(one) for one in (files.ca, files.certificate, files.key))
    named_by = "--etcd-ca, --etcd-cert and --etcd-key"
    found = TlsFiles(truststore=ca, certificate=certificate, key=key, named_by=named_by)
    return TlsIdentity(found, TlsRules(), servers=())


async def renew(identity: TlsIdentity, client: EtcdClient) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(POLL_S)
        await asyncio.to_thread(identity.refresh)
        take_renewed(identity, client)


def take_renewed(identity: TlsIdentity, client: EtcdClient) -> None:
    """Where the certificates in use are others than those of the client."""
    access = with_certificates(client.access, identity)
    if access != client.access:
        client.use(access)


def with_certificates(access: EtcdAccess, identity: TlsIdentity) -> EtcdAccess:
    material = identity.material
    return replace(access, ca=material.authorities, certificate=material.chain or None, key=material.key or None)
