"""AlterConfigs (33): the given settings replace all that a topic overrides; every other setting returns to its default.

IncrementalAlterConfigs (44) changes single settings. Node settings are fixed at start (42). What cannot be honoured,
such as a `compression.type` other than `producer`, is refused (40) and nothing changes.
Versions: no difference but the flexible encoding from 2 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.kafka import messages
from stratalog_node.serve.api.config_resources import ALTERING_NEEDS, alter_all
from stratalog_node.serve.api.p19_create_topics import overrides_of
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    answers = await alter_all(context, request, _replaced)
    schema = messages.response_type(33, context.header.api_version)
    return await encoded(schema, len(answers), lambda: {"responses": answers})


def _replaced(_: Mapping[str, str], configs: Any) -> Mapping[str, str]:
    return overrides_of(configs)


API = Api(33, "AlterConfigs", 0, 2, handle, needs=ALTERING_NEEDS)
