"""What the audit log says: the form of a line, how often events of one kind are counted, what commands change."""

__all__ = ("commands", "event_counts", "lines", "shares")
