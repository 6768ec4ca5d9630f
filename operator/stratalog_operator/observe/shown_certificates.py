"""Which pods show a certificate of the authority that issues now: asked of the pods themselves, by a handshake on their
admin ports. It is the proof without which no former authority is given up (`plan/former_authorities.py`).

The handshake trusts that one authority alone, so it fails with a certificate of any other. Ports read their certificate
from the same files as all other connections of the process. Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.tls.subjects import member_of
from stratalog_operator.kube.together import together
from stratalog_operator.plan.observed import SeenIssuer, SeenPod
from stratalog_operator.specs.objects import ADMIN_PORT

_ANSWER_SECONDS: Final = 3.0
_AT_ONCE: Final = 8


async def pods_that_show(
    pods: Sequence[SeenPod], issuer: SeenIssuer, cluster: str, port: int = ADMIN_PORT
) -> frozenset[str]:
    """The UIDs of all these pods, or none: the first pod that does not answer within 3 s, or shows anything else, ends
    it, because all are needed. `cluster`: the name that the members have in their certificates."""
    try:
        context = _trusting(issuer)
    except ssl.SSLError:
        return frozenset()
    slots = asyncio.Semaphore(_AT_ONCE)

    async def require(pod: SeenPod) -> None:
        async with slots, asyncio.timeout(_ANSWER_SECONDS):
            await _require_member(pod.address, port, context, cluster)

    try:
        async with together() as asked:
            for pod in pods:
                asked.create_task(require(pod))
    except (OSError, InvalidRequest):  # errors of TLS and timeouts are OSErrors
        return frozenset()
    return frozenset(pod.uid for pod in pods)


def _trusting(issuer: SeenIssuer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # pods are asked by their addresses; which member answers is compared instead
    context.load_verify_locations(cadata=issuer.pem)
    return context


async def _require_member(host: str, port: int, context: ssl.SSLContext, cluster: str) -> None:
    """Raises: OSError, InvalidRequest."""
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        member = member_of(shown)
        if member is None or member.cluster != cluster:
            raise InvalidRequest(f"{host} is not a member of {cluster}")
    finally:
        writer.transport.abort()
