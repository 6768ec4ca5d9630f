"""Consumer groups, classic and of KIP-848, as coordinators keep and report them."""

__all__ = (
    "consumer_group",
    "group",
)
