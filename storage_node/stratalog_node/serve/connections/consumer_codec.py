"""Kafka's encoding of classic consumers' subscriptions and assignments, for the groups of a node."""

from __future__ import annotations

from typing import Final

from stratalog.kafka.subscription import read_assignment, read_subscription, subscribed_topics, write_assignment
from stratalog_node.groups.subscription_codec import SubscriptionCodec

CONSUMER_CODEC: Final = SubscriptionCodec(subscribed_topics, read_subscription, read_assignment, write_assignment)
