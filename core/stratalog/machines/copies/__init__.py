"""Rules about copies of segments: where they are placed, which are missing, where a recovered segment ends."""

__all__ = (
    "copy_moves",
    "copy_repair",
    "disk_room",
    "internal_topics",
    "leaving",
    "leaving_survey",
    "placement",
    "rebalance",
    "recovery_patience",
    "recovery_rule",
    "wanted_copies",
)
