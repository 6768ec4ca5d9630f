"""Kafka's own bytes of classic consumers, as the groups of a node are given them."""

from __future__ import annotations

from typing import Final

from stratalog.kafka.subscription import read_assignment, read_subscription, subscribed_topics, write_assignment
from stratalog_node.groups.subscription_codec import SubscriptionCodec

CONSUMER_CODEC: Final = SubscriptionCodec(subscribed_topics, read_subscription, read_assignment, write_assignment)
