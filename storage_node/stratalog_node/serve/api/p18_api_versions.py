"""ApiVersions (18): what this node speaks, straight from the registry, so that nothing is advertised that is not served
(trap 4: librdkafka reconnects in a loop over such an API).

An unsupported version is answered in version 0 with error 35 and the whole list, from which clients choose again
(trap 3). The response header is always v0. From version 3 clients name their software: a bad name is error 42.
No features are finalized, so clients stay with transactions v1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.serve.connections.advertised import AdvertisedApi
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api

_NAMES_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    schema = messages.response_type(18, version)
    if version >= _NAMES_SINCE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return messages.build(schema, error_code=ErrorCode.INVALID_REQUEST, api_keys=(), throttle_time=0)
    return messages.build(schema, error_code=0, api_keys=_listed(context.services.control.advertised), throttle_time=0)


def fallback_response(advertised: Sequence[AdvertisedApi], correlation_id: int) -> bytes:
    """The whole reply, size prefix first, to an ApiVersions request of a version that is not served."""
    schema = messages.response_type(18, 0)
    entity = messages.build(schema, error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_listed(advertised))
    return messages.encode_response(18, 0, correlation_id, entity)


def _listed(advertised: Sequence[AdvertisedApi]) -> list[dict[str, int]]:
    return [{"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version} for api in advertised]


API = Api(18, "ApiVersions", 0, 3, handle, needs=())
