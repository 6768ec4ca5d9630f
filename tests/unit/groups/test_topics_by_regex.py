"""Which topics a regular expression names that the coordinator resolves (KIP-848).

Kafka 4.3 matches the whole name of every topic of the metadata, internal or not
(`GroupMetadataManager.refreshRegularExpressions`: `pattern.matcher(topicName).matches()`).

Seven expressions were also tried against Kafka 4.3.1 and a node with its Java consumer (`group.protocol=consumer`,
`subscribe(new SubscriptionPattern(...))`), with `exclude.internal.topics` true and false: all 14 answers are equal.
`rx-T` matches neither `xrx-T` nor `rx-T-x`; `__.*` matches `__consumer_offsets`, `consumer_offsets` nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratalog_node.groups.consumers import TopicsSeen

NAMES = ("__consumer_offsets", "orders", "orders-eu", "old-orders")


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        (".*", set(NAMES)),
        ("__.*", {"__consumer_offsets"}),
        ("consumer_offsets", set()),
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu"}),
        ("^orders$", {"orders"}),
        ("orders|old", {"orders"}),
        ("(", set()),
    ],
)
def test_a_regular_expression_matches_whole_names_of_internal_topics_too(regex: str, expected: set[str]) -> None:
    topics = [SimpleNamespace(name=name, is_internal=name.startswith("__")) for name in NAMES]
    seen = TopicsSeen(cast(Any, SimpleNamespace(topics=lambda: topics)))
    assert set(seen.matching(regex)) == expected
