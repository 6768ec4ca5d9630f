"""The handlers of the APIs of consumer groups and their offsets, one module per API key."""

__all__ = ()
