"""The handlers of the APIs of quotas, one module per API key."""

__all__ = ()
