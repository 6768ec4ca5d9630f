"""Whether a client may create or delete partitions now, by its quota (controller_mutation_rate, KIP-599).

Versions that know the answer THROTTLING_QUOTA_EXCEEDED (89) get it while the client is in debt. Requests in older
versions are performed, and their clients muted for as long as the debt takes.
"""

from __future__ import annotations

from typing import Final

from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.serve.api.topic_answers import TopicRefused
from stratalog_node.serve.connections.context import RequestContext

_STRICT_SINCE: Final = {19: 6, 20: 5, 37: 3}
"""By API key: CreateTopics, DeleteTopics, CreatePartitions. Topics that Metadata makes are never refused for it."""
_NEVER: Final = 1 << 15


def count_mutations(context: RequestContext, partitions: int) -> None:
    """So many partitions are about to be created or deleted. Raises: TopicRefused."""
    if context.usage is None:
        return
    is_strict = context.header.api_version >= _STRICT_SINCE.get(context.header.api_key, _NEVER)
    if not context.usage.mutate(partitions, is_strict=is_strict):
        raise TopicRefused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
