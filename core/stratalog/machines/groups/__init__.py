"""Consumer groups as machines: the classic protocol, the consumer protocol (KIP-848), and conversion between them."""

__all__ = (
    "classic_members",
    "consumer_group",
    "consumer_group_events",
    "group",
    "group_conversion",
    "group_events",
    "group_offsets",
)
