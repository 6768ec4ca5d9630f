"""IncrementalAlterConfigs (44): set or unset single settings of a topic and leave the others alone.

SET and DELETE; APPEND and SUBTRACT are for lists, and no setting here is a list (40). Either all of a resource's
changes happen, or none. Versions: no difference but the flexible encoding from 1 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import InvalidRequest
from stratalog.settings.kafka_names import without
from stratalog_node.serve.api.config_resources import ALTERING_NEEDS, alter_all
from stratalog_node.serve.api.topic_answers import TopicRefused, repeated
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api

_SET, _DELETE = 0, 1


async def handle(context: RequestContext, request: Any) -> Any:
    answers = await alter_all(context, request, _changed)
    schema = messages.response_type(44, context.header.api_version)
    return await encoded(schema, len(answers), lambda: {"responses": answers})


def _changed(present: Mapping[str, str], configs: Any) -> Mapping[str, str]:
    if doubles := repeated(config.name for config in configs):
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"named more than once: {', '.join(map(str, doubles))}")
    settings = dict(present)
    for config in configs:
        if config.config_operation == _DELETE:
            settings = without(config.name, settings)
        elif config.config_operation != _SET:
            raise InvalidRequest(f"topic setting {config.name} is not a list: set it to a whole value")
        elif config.value is None:
            raise InvalidRequest(f"topic setting {config.name} has no value: delete it to take the default")
        else:
            settings[config.name] = config.value
    return settings


API = Api(44, "IncrementalAlterConfigs", 0, 1, handle, needs=ALTERING_NEEDS)
